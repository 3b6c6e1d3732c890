"""Protects the build of Kubernetes' CRD server from another suite of Debian: the machine's own archive is asked and no other, versions
are what the suite has, and where it cannot be had the reason is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagefleet_local.assets import crdserver, suite
from pagefleet_local.assets.debian import AssetError
from pagefleet_local.assets.suite import Suite, rewritten

STANZAS = """\
Types: deb
# a snapshot
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg
"""
LINES = """\
# deb http://old.example/debian bookworm main
deb http://mirror.example/debian-security bookworm-security main
deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main contrib
deb http://mirror.example/debian bookworm-updates main
"""


def test_the_archive_of_the_machine_is_asked_for_the_suite() -> None:
    assert rewritten(STANZAS, "sid") == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: sid\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian.gpg\n"
    )
    assert rewritten(LINES, "sid") == "deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian sid main\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "deb http://mirror.example/ubuntu noble main\n",
        "Types: deb\nURIs: http://mirror.example/other\nSuites: stable\nComponents: main\n",
        f"Enabled: no\n{STANZAS.split(chr(10) * 2)[1]}",
    ],
)
def test_what_is_no_archive_of_debian_is_not_asked(text: str) -> None:
    assert rewritten(text, "sid") == ""


def test_without_an_archive_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "SOURCES", (tmp_path / "sources.list", tmp_path / "sources.list.d"))
    with pytest.raises(AssetError, match="apt is set up for no archive of Debian"):
        Suite("sid", tmp_path / "work").update()


def test_versions_are_those_of_the_suite() -> None:
    known = {crdserver.SOURCE: {"Version": "0.36.4-1"}, "golang-go": {"Depends": "golang-1.28-go, golang-src"}}
    assert crdserver.kubernetes_version(known) == "1.36.4"
    assert crdserver.go_version(known) == "1.28"
    assert crdserver.go_version(known | {f"golang-{crdserver.GO}-go": {}}) == crdserver.GO
    with pytest.raises(AssetError, match="no version of Kubernetes' CRD server"):
        crdserver.kubernetes_version({})
    with pytest.raises(AssetError, match="has no Go"):
        crdserver.go_version({})


def test_the_newest_server_of_the_cache_is_used_without_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEFLEET_CACHE", str(tmp_path))
    for version in ("1.36.10", "1.36.4"):
        (tmp_path / f"crd-server-{version}").mkdir()
        server = crdserver.CrdServer(tmp_path / f"crd-server-{version}", version)
        server.program.touch()
        server.manifest_check.touch()
    (tmp_path / "crd-server-1.37.0").mkdir()  # not built to its end
    assert (crdserver.crd_server().version, crdserver.crd_server().minor) == ("1.36.10", 36)
