"""Protects the count of an operator's writes in the scale measurements: rotated and deleted audit logs lose and repeat nothing."""

from __future__ import annotations

import json
from pathlib import Path

from scale.audit import Writes

USER = "system:serviceaccount:a:operator"


def _line(name: str, verb: str = "patch", user: str = USER) -> str:
    return json.dumps({"user": {"username": user}, "verb": verb, "objectRef": {"name": name}}) + "\n"


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_the_users_writes_to_other_services_count(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    _append(log, _line("s1") + _line("s1-abc") + _line("s12") + _line("s2", "get") + _line("s2", user="somebody"))
    assert Writes(tmp_path, USER).total() == 3
    assert Writes(tmp_path, USER, {"s1"}).total() == 1


def test_a_line_counts_once_and_when_it_is_whole(tmp_path: Path) -> None:
    log, writes = tmp_path / "audit.log", Writes(tmp_path, USER)
    whole = _line("s2")
    _append(log, _line("s1") + whole[:20])
    assert [writes.total(), writes.total()] == [1, 1]
    _append(log, whole[20:])
    assert [writes.total(), writes.total()] == [2, 2]


def test_rotated_and_deleted_logs_lose_and_repeat_nothing(tmp_path: Path) -> None:
    log, writes = tmp_path / "audit.log", Writes(tmp_path, USER)
    _append(log, _line("s1"))
    assert writes.total() == 1
    _append(log, _line("s2"))  # not read before the rotation
    old = log.rename(tmp_path / "audit-2026-11-26T10-00-00.log")
    _append(log, _line("s3"))
    assert writes.total() == 3
    old.unlink()
    _append(log, _line("s4"))
    assert writes.total() == 4
