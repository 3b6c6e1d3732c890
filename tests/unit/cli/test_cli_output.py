"""Protects what the command line prints: for other programs YAML that kubectl reads as the API server had it, and for people nothing that their
terminals obey."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.answering_server import api_server
from typer.testing import CliRunner

from pagefleet_cli import export
from pagefleet_cli.base.cluster import Target
from pagefleet_cli.base.options import Output
from pagefleet_cli.base.output import show
from pagefleet_cli.main import app


@pytest.mark.parametrize("text", ["12e45678", "08123456", "1e3", "0o17", "1_0e5", "y", "N", "12345678", "true"])
def test_text_stays_text_for_kubectl(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """kubectl reads 12e45678 without quotes as a number; PyYAML quotes only what PyYAML itself would misread."""
    document = {"value": text, "hash": "1c688403", "number": 12, "share": 0.5, "yes": True}
    show(Output.YAML, document, list)
    written = capsys.readouterr().out
    assert written.startswith(f"value: '{text}'\nhash: 1c688403\nnumber: 12\nshare: 0.5\n")
    assert yaml.safe_load(written) == document


def test_records_of_any_hash_are_exported_as_kubectl_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred revisions one or two have such a hash. kubectl refuses a label that is a number, and the restore ends there."""
    metadata = {"name": "chat-1", "namespace": "a", "labels": {"pagefleet.io/revision": "12e45678"}}
    record = {"metadata": metadata, "data": {"hash": "12e45678"}, "revision": 1}

    class One:
        def __init__(self, target: Target) -> None:
            pass

        def services(self, every: bool) -> dict[str, Any]:
            return {"items": []}

        def records(self, service: str, every: bool) -> list[dict[str, Any]]:
            return [record]

    monkeypatch.setattr(export, "Cluster", One)
    written = CliRunner().invoke(app, ["export"]).output
    assert "pagefleet.io/revision: '12e45678'" in written
    assert "hash: '12e45678'" in written


LAST_WORDS = "\x1b]0;all is well\x07\x1b[2J\x9b31m\rCUDA error\x7f"  # sets the title, clears the screen, and turns red


@pytest.mark.parametrize(
    "words",
    [["status", "chat"], ["status", "chat", "-o", "wide"], ["rollout", "status", "chat"],
     ["rollout", "status", "chat", "--watch"], ["rollout", "why", "chat"], ["rollout", "pause", "chat"]],
    ids=" ".join,
)  # fmt: skip
def test_the_last_words_of_an_engine_are_shown_and_not_obeyed(words: list[str], tmp_path: Path) -> None:
    condition = {"type": "Degraded", "status": "True", "reason": "EngineExited", "message": LAST_WORDS}
    verdict = {"outcome": "Regressed", "message": LAST_WORDS}
    now = "2026-01-01T00:00:00Z"
    status = {
        "conditions": [condition], "canary": "bbbb", "stable": "aaaa", "rollout": {"phase": "RolledBack", "verdict": verdict},
        "rejected": [{"hash": "bbbb", "reason": "EngineExited", "message": LAST_WORDS, "time": now}],
        "decisions": [{"time": now, "kind": "RolledBack", "message": LAST_WORDS}],
    }  # fmt: skip
    metadata = {"name": "chat", "namespace": "a", "creationTimestamp": now}
    service = {"metadata": metadata, "spec": {}, "status": status}
    with api_server(tmp_path, [service, 422], LAST_WORDS) as path:
        done = CliRunner().invoke(app, [*words, "--kubeconfig", str(path)])
    said = done.output + done.stderr
    assert "^[[2J" in said, said
    assert [character for character in said if unicodedata.category(character) == "Cc" and character != "\n"] == []
