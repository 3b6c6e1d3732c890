"""Protects how the command line finds its cluster: the context that is named, kubeconfigs that cannot be used, keys in them, and
what it makes of an API server that is away for a moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.answering_server import CUT, Answer, Document, api_server
from support.silent_server import SECONDS, asking
from typer.testing import CliRunner, Result

from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.main import app

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


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As after `make down`, in a shell that still has its KUBECONFIG."""
    missing = tmp_path / "admin.kubeconfig"
    done = subprocess.run(
        [str(Path(sys.executable).parent / "pagefleet"), "status"],
        env={**os.environ, "KUBECONFIG": str(missing)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"the kubeconfig cannot be used: there is no file {missing} (give --kubeconfig" in done.stderr


@pytest.mark.parametrize("text", ["a: [", "- a", "a: \x00"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(CommandError, match="the kubeconfig cannot be used"):
        Cluster(Target(kubeconfig=path))


def service(phase: str) -> Document:
    return {"metadata": {"name": "chat", "namespace": "a"}, "status": {"rollout": {"phase": phase}}}


def done(action: Document) -> Document:
    """The service when the operator has carried the action out."""
    outcome = {"id": action["id"], "outcome": "Done", "message": "paused"}
    return {**service("Step"), "status": {"rollout": {"phase": "Step"}, "action": outcome}}


def ran(folder: Path, *words: str, answers: list[Answer]) -> Result:
    with api_server(folder, answers) as path:
        return CliRunner().invoke(app, ["rollout", *words, "--kubeconfig", str(path)])


@pytest.mark.parametrize("failure", [CUT, 429, 500, 503, 504])
@pytest.mark.parametrize("output", ["json", "yaml", "table"])
def test_a_watch_waits_for_an_api_server_that_is_away_in_every_format(
    tmp_path: Path, output: str, failure: int
) -> None:
    """Exit code 1 would tell a pipeline that the rollout was rolled back."""
    answers: list[Answer] = [service("Step"), failure, service("Idle")]
    ended = ran(tmp_path, "status", "chat", "--watch", "--interval", "0.1", "-o", output, answers=answers)
    assert (ended.exit_code, answers) == (0, []), ended.output


@pytest.mark.parametrize("failure", [CUT, 429, 500, 503, 504])
def test_an_answer_to_an_action_is_awaited_while_the_api_server_is_away(tmp_path: Path, failure: int) -> None:
    """Exit code 1 would tell a pipeline that the operator refused what it then did."""
    ended = ran(tmp_path, "pause", "chat", answers=[service("Step"), service("Step"), failure, done])
    assert (ended.exit_code, ended.output) == (0, "chat: paused\n")


@pytest.mark.parametrize(
    ("words", "answers", "said"),
    [
        (["status", "chat", "--watch"], [service("Step"), 403], "forbidden"),
        (["pause", "chat"], [service("Step"), service("Step"), 403], "forbidden"),
        (["status", "chat"], [503], "the API server answers 503"),
    ],
)
def test_what_does_not_pass_ends_a_command_at_once(
    tmp_path: Path, words: list[str], answers: list[Answer], said: str
) -> None:
    ended = ran(tmp_path, *words, answers=list(answers))
    assert (ended.exit_code, said in ended.output) == (1, True), ended.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_no_private_key_stays_behind_when_a_command_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    """A time limit ends a command by SIGTERM, and a terminal that is closed by SIGHUP."""
    command = [sys.executable, "-c", "from pagefleet_cli.main import app; app()", "status"]
    with asking(command, tmp_path) as (process, temporary):
        assert any("PRIVATE KEY" in path.read_text() for path in temporary.iterdir()), "the library writes it there"
        process.send_signal(number)
        assert process.wait(SECONDS) == 128 + number
    assert list(temporary.iterdir()) == []
