"""Protects how the requests of a step are counted and remembered from decision to decision, which source measures what while requests are
mirrored, and that slices are looked at in the order of time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_operator.domain.analysis import sources
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.guard_signals import Source
from pagefleet_operator.domain.spec.schema.rollout import OnInconclusive
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import Status


def entry(signal: str = "ttft", source: str | None = None, histogram: str = "") -> LatencyGuard:
    return LatencyGuard(signal, 0.95, 0.15, 0.99, 100, source, histogram)


def guard(*entries: LatencyGuard, errors: Source = Source.GATEWAY) -> Guard:
    return Guard(entries, 0.01, 5, OnInconclusive.HOLD, 600.0, error_source=errors)


def piece(start: float, requests: int, revision: str = "c", retried: int = 0) -> Slice:
    return Slice("g", start, 2.0, revision, "", requests, 0, retried=retried)


def observed(*gateway: Slice, **more: object) -> Observation:
    return replace(Observation("ns", "chat", "u", 1, {}, Status(), slices=gateway), **more)  # type: ignore[arg-type]


def count(observation: Observation, since: float = 0.0, revision: str = "c", *, mirrored: bool = False) -> int:
    return sources.count_requests(observation, guard(entry()), revision, since, mirrored)


def test_requests_are_counted_from_the_beginning_on_without_attempts_that_were_tried_again() -> None:
    slices = (piece(0, 5), piece(2, 7, retried=2), piece(2, 50, "s"), piece(4, 1))
    assert count(observed(*slices)) == 11
    assert count(observed(*slices), since=2.0) == 6
    assert count(observed(*slices), revision="s") == 50
    assert count(Observation("ns", "chat", "u", 1, {}, Status())) == 0


def test_only_new_slices_are_added_to_what_was_counted() -> None:
    first = observed(piece(0, 5))
    assert count(first) == 5
    # The memo stands for what was looked at before: a slice that is the same is not looked at again.
    grown = replace(observed(piece(0, 5), piece(2, 3)), memo=first.memo)
    assert count(grown) == 8
    known = first.memo["requests gateway"]
    assert isinstance(known, sources._Counted) and (known.requests, len(known.slices)) == (8, 2)
    first.memo["requests gateway"] = replace(known, requests=108)
    assert count(grown) == 108


def test_requests_of_slices_that_are_retained_no_longer_count() -> None:
    """A busy service's slices are retained for minutes, and a step may ask for the requests of hours."""
    earlier = {"c": {0.0: 40, 60.0: 30, 120.0: 20}, "s": {60.0: 700}}
    left = observed(piece(180, 5), piece(182, 3, retried=1), earlier=earlier)
    assert [count(left, since) for since in (0.0, 60.0, 61.0, 181.0)] == [97, 57, 27, 2]
    assert count(left, 60.0, "s") == 700 and count(left, 60.0, "other") == 0
    assert count(replace(left, slices=None)) == 0, "no gateway has answered"


@pytest.mark.parametrize(
    ("slices", "since", "revision", "expected"),
    [
        ((piece(0, 4), piece(2, 3)), 0.0, "c", 7),  # other slices than before
        ((piece(0, 5), piece(2, 3)), 1.0, "c", 3),  # from another time on
        ((piece(0, 5), piece(2, 3, "s")), 0.0, "s", 3),  # of another revision
    ],
)
def test_what_was_counted_of_something_else_is_forgotten(
    slices: tuple[Slice, ...], since: float, revision: str, expected: int
) -> None:
    first = observed(piece(0, 5))
    assert count(first) == 5
    assert count(replace(observed(*slices), memo=first.memo), since, revision) == expected


def test_the_source_that_has_counted_most_says_how_many() -> None:
    observation = observed(
        piece(0, 5), engine_slices=(piece(0, 9),), prometheus={"": (piece(0, 20),), "mesh": (piece(0, 30),)}
    )

    def asked(*entries: LatencyGuard, errors: Source = Source.GATEWAY, mirrored: bool = False) -> int:
        return sources.count_requests(observation, guard(*entries, errors=errors), "c", 0.0, mirrored)

    assert asked(entry()) == 5
    assert asked(entry(), entry(source="Engine")) == 9
    assert asked(entry(), errors=Source.ENGINE) == 9
    assert asked(entry(source="Prometheus")) == 20
    assert asked(entry(source="Prometheus", histogram="mesh")) == 30
    assert asked(entry(source="Prometheus", histogram="other")) == 5
    assert asked(entry(source="Prometheus"), errors=Source.ENGINE, mirrored=True) == 5


@pytest.mark.parametrize(
    ("given", "mirrored", "source"),
    [
        (entry(), False, Source.GATEWAY),
        (entry(), True, Source.ENGINE),
        (entry("tpot"), True, None),
        (entry("tpot"), False, Source.GATEWAY),
        (entry(source="Prometheus"), True, Source.PROMETHEUS),
        (entry(source="Engine"), True, Source.ENGINE),
    ],
)
def test_engines_measure_mirrored_requests_where_they_can(
    given: LatencyGuard, mirrored: bool, source: Source | None
) -> None:
    assert sources.measuring_source(given, mirrored) is source


@pytest.mark.parametrize(
    ("given", "mirrored", "source"),
    [
        (Source.GATEWAY, True, Source.ENGINE),
        (Source.GATEWAY, False, Source.GATEWAY),
        (Source.PROMETHEUS, True, Source.PROMETHEUS),
    ],
)
def test_engines_count_the_errors_of_mirrored_requests(given: Source, mirrored: bool, source: Source) -> None:
    assert sources.error_source(guard(errors=given), mirrored) is source


def test_silence_has_the_reason_of_its_source() -> None:
    told = observed(silence={"prometheus mesh": "parse error", "prometheus": "refused"})
    assert sources.reason_of_silence(told, Source.PROMETHEUS, "mesh") == "parse error"
    assert sources.reason_of_silence(told, Source.PROMETHEUS) == "refused"
    assert sources.reason_of_silence(observed(), Source.PROMETHEUS) == "Prometheus has not been asked yet"
    assert sources.reason_of_silence(told, Source.GATEWAY).startswith("no gateway answered the operator")
    assert sources.reason_of_silence(told, Source.ENGINE).startswith("no engine answered the operator")


def test_names_of_sources() -> None:
    assert [sources.name_of(one) for one in (Source.GATEWAY, Source.ENGINE, Source.PROMETHEUS)] == [
        "gateway", "engine", "prometheus",
    ]  # fmt: skip
    assert sources.name_of(Source.PROMETHEUS, "mesh") == "prometheus mesh"


def test_slices_are_in_the_order_of_time() -> None:
    memo: dict[str, object] = {}
    early, middle, late = piece(0, 1), piece(2, 1), piece(4, 1)
    assert sources.in_order(memo, "gateway", (early, late)) == (early, late)
    assert memo["order gateway"] == (early, late)
    # What comes later is compared with the last one that was looked at.
    assert sources.in_order(memo, "gateway", (early, late, middle)) == (early, middle, late)
    assert memo["order gateway"] == (early, late)
    assert sources.in_order(memo, "gateway", (late, early)) == (early, late)
    assert sources.in_order(memo, "gateway", ()) == ()
    assert sources.in_order(memo, "gateway", (early, middle, late)) == (early, middle, late)
    assert memo["order gateway"] == (early, middle, late)
    assert sources.in_order({}, "engine", (middle, early, late)) == (early, middle, late)
