"""Protects a service that its user has edited: a second `make up` applies the sample only where that changes nothing, or where
there is no service."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pagefleet_local.demo.stage import own
from pagefleet_local.fleet.kubectl import Kubectl

# What `kubectl get` prints, and the exit status of `kubectl diff`.
KUBECTL = """#!/bin/sh
case "$*" in
  *" get "*) echo '{found}' ;;
  *" diff -f "*"/manifests/samples/chat.yaml") exit {status} ;;
  *) exit 9 ;;
esac
"""


@pytest.mark.parametrize(
    ("found", "status", "edited"), [("", 1, False), ("{}", 0, False), ("{}", 1, True), ("{}", 2, False)]
)
async def test_an_edited_service_is_told_from_the_sample(tmp_path: Path, found: str, status: int, edited: bool) -> None:
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(found=found, status=status))
    program.chmod(stat.S_IRWXU)
    assert await own(Kubectl(tmp_path / "kubeconfig", program)) is edited
