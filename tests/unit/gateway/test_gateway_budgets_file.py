"""Protects the file of the monthly budgets: it outlives a gateway process, several gateways may share it, what is older takes nothing
back, and a file that cannot be used stops no gateway."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from support.gateway.fleet import until

from pagefleet_gateway.limits import budgets_file
from pagefleet_gateway.limits.budgets import Budgets
from pagefleet_gateway.limits.budgets_file import BudgetsFile


def begun(file: Path, process: str) -> tuple[Budgets, BudgetsFile]:
    budgets = Budgets(process)
    return budgets, BudgetsFile(file, budgets)


def test_a_new_process_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    file = tmp_path / "budgets.json"
    for number in range(3):
        budgets, kept = begun(file, f"process-{number}")
        assert budgets.used("team") == 5 * number
        budgets.add("team", 5)
        kept.save()
    assert begun(file, "last")[0].used("team") == 15
    assert [one.name for one in tmp_path.iterdir()] == ["budgets.json"]


def test_gateways_that_share_a_file_lose_nothing_to_each_other(tmp_path: Path) -> None:
    file = tmp_path / "budgets.json"
    (one, first), (two, second) = begun(file, "a"), begun(file, "b")
    one.add("team", 5)
    two.add("team", 7)
    first.save()
    second.save()
    first.save()  # it knows an older count of the other, or none
    assert begun(file, "c")[0].used("team") == 12
    assert one.used("team") == two.used("team") == 12


async def test_a_running_gateway_writes_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets_file, "PERIOD_SECONDS", 0.01)
    file = tmp_path / "budgets.json"
    budgets, kept = begun(file, "a")
    following = asyncio.create_task(kept.follow())
    budgets.add("team", 5)
    await until(file.exists)
    budgets.add("team", 5)
    await until(lambda: begun(file, "b")[0].used("team") == 10)
    following.cancel()


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '{"2999-01": {"a": {"team": -1}}}', "\x00", json.dumps("x"), "[" * 9999]
)
def test_a_broken_file_is_replaced(tmp_path: Path, content: str) -> None:
    file = tmp_path / "budgets.json"
    file.write_text(content)
    budgets, kept = begun(file, "a")
    budgets.add("team", 5)
    kept.save()
    assert begun(file, "b")[0].used("team") == 5


@pytest.mark.parametrize("name", ["missing/budgets.json", "x" * 300])
def test_a_file_that_cannot_be_used_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    budgets, kept = begun(tmp_path / name, "a")
    budgets.add("team", 5)
    with caplog.at_level(logging.ERROR):
        kept.save()
        kept.save()
    assert len(caplog.records) == 1 and "PAGEFLEET_GATEWAY_BUDGETS_FILE" in caplog.text
    assert budgets.used("team") == 5
