"""Protects the table of the guard's signals: who measures each, and what its readers take from it."""

from __future__ import annotations

import pytest

from pagefleet_operator.domain.analysis import sources
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.spec.schema.custom_runtime import METRICS
from pagefleet_operator.domain.spec.schema.guard_signals import ERRORS, GUARD_SIGNALS, Source, source_of, title
from pagefleet_operator.domain.spec.schema.rollout import GUARD

# signal: the source that is taken when the spec names none, and the source for mirrored requests.
MEASURED: dict[str, tuple[Source, Source | None]] = {
    "ttft": (Source.GATEWAY, Source.ENGINE),
    "itl": (Source.ENGINE, Source.ENGINE),
    "tpot": (Source.GATEWAY, None),
    "e2e": (Source.GATEWAY, Source.ENGINE),
    "queue": (Source.ENGINE, Source.ENGINE),
}


def test_every_signal_is_measured_by_somebody_and_has_a_title() -> None:
    assert (
        list(GUARD_SIGNALS) == list(MEASURED) == GUARD["properties"]["latency"]["items"]["properties"]["signal"]["enum"]
    )
    assert all(row.gateway or row.engine for row in GUARD_SIGNALS.values())
    assert len({row.title for row in GUARD_SIGNALS.values()}) == len(GUARD_SIGNALS)
    assert {name for name, row in GUARD_SIGNALS.items() if row.engine} <= set(METRICS["properties"])


@pytest.mark.parametrize("signal", MEASURED)
def test_the_source_of_a_signal(signal: str) -> None:
    usual, mirrored = MEASURED[signal]
    assert source_of(signal, None) is usual
    assert source_of(signal, "Prometheus") is Source.PROMETHEUS
    assert sources.measuring_source(LatencyGuard(signal, 0.95, 0.15, 0.99, 200), mirrored=True) is mirrored


def test_failures_are_counted_by_the_gateways_unless_the_spec_names_another() -> None:
    assert source_of(ERRORS, None) is Source.GATEWAY
    assert source_of(ERRORS, "Engine") is Source.ENGINE


def test_a_signal_of_another_version_is_shown_by_its_name() -> None:
    assert title("ttft") == "time to first token"
    assert title("jitter") == "jitter"
