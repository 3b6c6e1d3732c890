"""Protects durations: what they mean in seconds, which texts are none, and that only fields without a rule of CEL take days."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pagefleet_contract.quantity import DURATION, TIME_LIMIT, seconds
from pagefleet_operator.domain.spec.parse import SpecErrors, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [("3d", 259200.0), ("1d12h", 129600.0), ("1h30m", 5400.0), ("250ms", 0.25), ("1.5s", 1.5), ("0s", 0.0)],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, value: float) -> None:
    assert seconds(text) == value
    assert re.fullmatch(DURATION, text)
    assert bool(re.fullmatch(TIME_LIMIT, text)) is ("d" not in text)


@pytest.mark.parametrize("text", ["", "3", "d", "3 d", "3D", "1w", "-3d", "3days"])
def test_other_texts_are_refused_by_the_pattern_and_by_the_reader(text: str) -> None:
    assert not re.fullmatch(DURATION, text)
    with pytest.raises(ValueError, match="3d"):
        seconds(text)


def errors(**parts: Any) -> dict[str, str]:
    parsed = parse({"model": {"source": "file:///m"}, **parts})
    return {error.field: error.message for error in parsed.errors} if isinstance(parsed, SpecErrors) else {}


def test_a_weight_may_be_held_for_days_and_a_request_may_not_take_them() -> None:
    assert errors(rollout={"steps": [{"weight": 5, "hold": "3d"}], "afterPromotion": {"keepPrevious": "7d"}}) == {}
    for name in ("timeout", "firstTokenTimeout", "nextTokenTimeout"):
        found = errors(traffic={name: "1d"})
        assert found == {f"spec.traffic.{name}": "must be a duration such as 90s, 5m or 1h30m; not '1d'"}
