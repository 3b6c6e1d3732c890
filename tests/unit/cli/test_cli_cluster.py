"""Protects how the command line finds its cluster: the context that is named, kubeconfigs that cannot be used, and keys in them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.silent_server import SECONDS, asking
from typer.testing import CliRunner

from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.main import app
from pagefleet_cli.rollout import commands

KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "good", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
}


@pytest.mark.parametrize(
    "current", [{}, {"current-context": ""}, {"current-context": "gone"}], ids=["none", "empty", "stale"]
)
def test_a_context_that_is_named_needs_no_current_one(tmp_path: Path, current: dict[str, str]) -> None:
    """As for kubectl: who works on several clusters often unsets current-context, so that nothing is done to the wrong one."""
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({**KUBECONFIG, **current}))
    assert Cluster(Target(kubeconfig=path, context="good")).namespace == "team-a"
    with pytest.raises(CommandError, match="the kubeconfig cannot be used"):
        Cluster(Target(kubeconfig=path))
    with pytest.raises(CommandError, match="has no 'other'; it has good"):
        Cluster(Target(kubeconfig=path, context="other"))


@pytest.mark.parametrize("text", ["a: [", "- a", "a: \x00"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(CommandError, match="the kubeconfig cannot be used"):
        Cluster(Target(kubeconfig=path))


@pytest.mark.parametrize("output", ["json", "yaml", "table"])
def test_a_watch_waits_for_an_absent_api_server_in_every_format(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    """Exit code 1 would tell a pipeline that the rollout was rolled back."""
    metadata = {"name": "chat", "namespace": "a"}
    answers: list[Any] = [
        {"metadata": metadata, "status": {"rollout": {"phase": "Step"}}},
        CommandError("the API server http://127.0.0.1:9 does not answer: connection refused"),
        {"metadata": metadata, "status": {"rollout": {"phase": "Idle"}}},
    ]

    class Away:
        def __init__(self, target: Target) -> None:
            pass

        def service(self, name: str) -> Any:
            if isinstance(found := answers.pop(0), CommandError):
                raise found
            return found

    monkeypatch.setattr(commands, "Cluster", Away)
    done = CliRunner().invoke(app, ["rollout", "status", "chat", "--watch", "--interval", "0.1", "-o", output])
    assert done.exit_code == 0, done.output
    assert not answers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_no_private_key_stays_behind_when_a_command_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    """A time limit ends a command by SIGTERM, and a terminal that is closed by SIGHUP."""
    command = [sys.executable, "-c", "from pagefleet_cli.main import app; app()", "status"]
    with asking(command, tmp_path) as (process, temporary):
        assert any("PRIVATE KEY" in path.read_text() for path in temporary.iterdir()), "the library writes it there"
        process.send_signal(number)
        assert process.wait(SECONDS) == 128 + number
    assert list(temporary.iterdir()) == []
