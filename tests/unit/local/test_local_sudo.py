"""Protects the way of somebody who is not root and has sudo: the kubeconfig is theirs, and their home has no files of root's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagefleet_local.base import paths
from pagefleet_local.base.sudo import give

ROOT = os.geteuid() == 0
CALLER = 65534 if ROOT else os.geteuid()


def test_a_kubeconfig_belongs_to_who_called_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kubeconfig"
    path.touch(mode=0o600)
    monkeypatch.delenv("SUDO_UID", raising=False)
    give(path)
    assert path.stat().st_uid == os.geteuid()
    monkeypatch.setenv("SUDO_UID", str(CALLER))
    monkeypatch.setenv("SUDO_GID", str(CALLER))
    give(path)
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (CALLER, 0o600)


def test_root_makes_nothing_in_the_home_of_who_called_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAGEFLEET_CACHE", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache() == tmp_path / ".cache/pagefleet"
    monkeypatch.setenv("SUDO_UID", "1000")
    assert paths.cache().is_relative_to(tmp_path) is not ROOT
    monkeypatch.setenv("PAGEFLEET_CACHE", str(tmp_path / "given"))
    assert paths.cache() == tmp_path / "given"
