"""Protects how the command line finds its cluster: the context that is named, kubeconfigs that cannot be used, keys in them, and
what it makes of an API server that is away for a moment."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
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


@pytest.mark.parametrize("text", ["a: [", "- a", "a: \x00"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(CommandError, match="the kubeconfig cannot be used"):
        Cluster(Target(kubeconfig=path))


CUT = 0  # the connection ends without an answer


class Answering(BaseHTTPRequestHandler):
    """An API server with one service, which answers its GETs with `answers` in turn: the phase of a rollout, or an error's status. "done"
    is the outcome of the action that was requested last."""

    answers: ClassVar[list[str | int]] = []
    action: ClassVar[str] = ""

    def do_GET(self) -> None:
        answer = self.answers.pop(0)
        if answer == CUT:
            return
        if isinstance(answer, int):
            self._send(answer, {"kind": "Status", "message": "etcdserver: request timed out"})
            return
        known: dict[str, Any] = {"rollout": {"phase": answer}}
        if answer == "done":
            known["action"] = {"id": json.loads(self.action)["id"], "outcome": "Done", "message": "paused"}
        self._send(200, {"metadata": {"name": "chat", "namespace": "a"}, "status": known})

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).action = body["metadata"]["annotations"]["pagefleet.io/action"]
        self._send(200, {"metadata": {"name": "chat", "namespace": "a"}})

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of such a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump({**KUBECONFIG, "clusters": [cluster], "current-context": "good"}))
        yield path
        server.shutdown()


def ran(kubeconfig: Path, *words: str, answers: list[str | int]) -> Result:
    Answering.answers = answers
    return CliRunner().invoke(app, ["rollout", *words, "--kubeconfig", str(kubeconfig)])


@pytest.mark.parametrize("failure", [CUT, 429, 500, 503, 504])
@pytest.mark.parametrize("output", ["json", "yaml", "table"])
def test_a_watch_waits_for_an_api_server_that_is_away_in_every_format(
    answering: Path, output: str, failure: int
) -> None:
    """Exit code 1 would tell a pipeline that the rollout was rolled back."""
    watch = ("status", "chat", "--watch", "--interval", "0.1", "-o", output)
    done = ran(answering, *watch, answers=["Step", failure, "Idle"])
    assert done.exit_code == 0, done.output
    assert not Answering.answers


@pytest.mark.parametrize("failure", [CUT, 429, 500, 503, 504])
def test_an_answer_to_an_action_is_awaited_while_the_api_server_is_away(answering: Path, failure: int) -> None:
    """Exit code 1 would tell a pipeline that the operator refused what it then did."""
    done = ran(answering, "pause", "chat", answers=["Step", failure, "done"])
    assert (done.exit_code, done.output) == (0, "chat: paused\n")


def test_what_does_not_pass_ends_a_command_at_once(answering: Path) -> None:
    done = ran(answering, "status", "chat", "--watch", answers=["Step", 403])
    assert (done.exit_code, "forbidden" in done.output) == (1, True)
    done = ran(answering, "pause", "chat", answers=["Step", 403])
    assert (done.exit_code, "forbidden" in done.output) == (1, True)
    done = ran(answering, "status", "chat", answers=[503])
    assert (done.exit_code, "the API server answers 503" in done.output) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_no_private_key_stays_behind_when_a_command_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    """A time limit ends a command by SIGTERM, and a terminal that is closed by SIGHUP."""
    command = [sys.executable, "-c", "from pagefleet_cli.main import app; app()", "status"]
    with asking(command, tmp_path) as (process, temporary):
        assert any("PRIVATE KEY" in path.read_text() for path in temporary.iterdir()), "the library writes it there"
        process.send_signal(number)
        assert process.wait(SECONDS) == 128 + number
    assert list(temporary.iterdir()) == []
