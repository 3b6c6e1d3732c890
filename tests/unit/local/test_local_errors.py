"""Protects the words of a failure: they reach the reader whole, as one message and never as a traceback."""

from __future__ import annotations

import subprocess

import pytest
import typer

from pagefleet_local.assets.debian import AssetError
from pagefleet_local.base.preflight import Refused
from pagefleet_local.base.processes import StartFailed
from pagefleet_local.commands.errors import FAILED, REFUSED, readable_errors
from pagefleet_local.node import network

LOG = 'the end of kube-apiserver.log:\n[core]parsed scheme: "endpoint"\nkey [/registry/pods] is compacted'


@pytest.mark.parametrize(
    ("failure", "status", "word"),
    [
        (Refused(LOG), REFUSED, "refused: "),
        (StartFailed(LOG), FAILED, "failed: "),
        (AssetError(LOG), FAILED, "failed: "),
        (OSError(28, "No space left on device", "/var/lib/[pagefleet]"), FAILED, "failed: "),
        (subprocess.CalledProcessError(2, ["tar", "-cf", "[base].tar"]), FAILED, "failed: "),
    ],
)
def test_a_failure_keeps_its_words(
    failure: Exception, status: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, readable_errors():
        raise failure
    assert ended.value.exit_code == status
    assert capsys.readouterr().out == f"{word}{failure}\n"


def test_a_command_of_the_network_that_fails_is_a_failed_start() -> None:
    with pytest.raises(StartFailed, match=r"^cat /does/not/exist: .*No such file"):
        network.run("cat", "/does/not/exist")
