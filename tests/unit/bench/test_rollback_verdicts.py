"""Protects the verdicts of bench/rollback.py: a request that failed, was refused with 429 or was cut off misses a target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.rollback import verdicts

WELL: dict[str, dict[str, Any]] = {
    "alert": {"ms": {"p99": 1000.0}, "services": 500, "rollbacks": 200, "truncated": 0, "failed": 0, "shed": 0},
    "capacity": {"overMs": {}, "aborts": 20, "truncated": 0, "failed": 0, "shed": 0},
}


def missed(results: dict[str, dict[str, Any]]) -> int:
    return sum(value > limit if relation == "<=" else value < limit for _, value, relation, limit in verdicts(results))


@pytest.mark.parametrize("part", WELL)
@pytest.mark.parametrize("end", ["truncated", "failed", "shed"])
def test_one_request_that_is_not_answered_misses_a_target(part: str, end: str) -> None:
    assert missed(WELL) == 0
    assert missed(WELL | {part: WELL[part] | {end: 1}}) == 1


def test_a_part_that_could_not_run_has_no_verdict() -> None:
    assert verdicts({"alert": {"skipped": "the control plane needs root"}, "capacity": {"skipped": "x"}}) == []
