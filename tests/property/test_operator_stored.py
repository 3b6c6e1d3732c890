"""Protects the operator from objects that got past the API server's validation (an older schema, a write by someone who
may write the status): whatever JSON `.spec` and `.status` hold, a decision is taken and can be written down. Rows 9 and
10 of the reliability table. PAGEFLEET_STORED_OBJECTS sets how many are tried (10,000 in the campaign)."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.crd_mutations import LEAVES, MUTATIONS, changed
from support.golden_manifests import SPECS, spec_of
from support.virtual.cluster import Cluster

from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors, parse
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import Status

TRIES = int(os.environ.get("PAGEFLEET_STORED_OBJECTS", "400"))
NOW = 1_800_000_000.0
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=20)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


def test_there_are_twenty_mutations_and_every_field_is_reached() -> None:
    assert len({repr(value) for value in MUTATIONS}) >= 20
    assert ("rollout", "steps", 0, "hold") in LEAVES or ("rollout", "steps") in LEAVES
    assert len(LEAVES) > 100


@pytest.mark.parametrize("path", LEAVES, ids=lambda path: ".".join(map(str, path)))
def test_every_mutation_of_every_field_is_a_spec_or_is_refused_by_name(path: tuple[str | int, ...]) -> None:
    """An error names the field, one above it, or (rules that cross fields) another field of the spec."""
    good = spec_of("full")
    before = parse(good)
    for value in MUTATIONS:
        spec = changed(good, path, value)
        parsed = parse(spec)
        assert isinstance(parsed, Spec | SpecErrors)
        if isinstance(parsed, SpecErrors):
            assert parsed.errors
            assert all(error.field.split(".")[0] == "spec" and error.message for error in parsed.errors), parsed
            assert any(str(path[0]) in error.field for error in parsed.errors), (value, parsed.message)
        decided(spec, Status())
    assert parse(good) == before, "a refused mutation left something behind"


def test_decisions_change_nothing_in_the_spec_that_is_remembered() -> None:
    for name in SPECS:
        parsed = parse(spec_of(name))
        copied = copy.deepcopy(parsed)
        plan = decided(spec_of(name), Status())
        decided(
            spec_of(name),
            codec.load(codec.dump(plan.status)),
            {plan.status.stable: RevisionReading(plan.status.stable, 1)},
        )
        assert parse(spec_of(name)) is parsed
        assert parsed == copied


def decided(spec: Any, status: Status, revisions: Mapping[str, RevisionReading] | None = None) -> Plan:
    """A decision on a stored object, and its status as it would be written: strict JSON that reads back the same."""
    observation = Observation("team", "chat", "uid", 3, spec, status, revisions or {})
    plan = decide(observation, NOW)
    written = json.dumps(codec.dump(plan.status), allow_nan=False)
    assert isinstance(codec.load(json.loads(written)), Status)
    return plan


def histories() -> list[dict[str, Any]]:
    """Statuses as the operator writes them, in several phases of a rollout."""
    cluster, statuses = Cluster(1), []
    for tick in range(60):
        if tick == 15:
            cluster.edit(4)
        if tick == 40:
            cluster.act("abort")
        statuses.append(codec.dump(cluster.tick()))
    return statuses


HISTORIES = histories()
SERVED = Cluster(1).spec


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*path, number))


def replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    if not path:
        return new
    copied = copy.copy(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied


@st.composite
def mutated(draw: st.DrawFn, good: st.SearchStrategy[Any]) -> Any:
    value = copy.deepcopy(draw(good))
    for _ in range(draw(st.integers(0, 3))):
        value = replaced(value, draw(st.sampled_from(list(places(value)))), draw(JSON | st.sampled_from(MUTATIONS)))
    return value


STORED_SPECS = JSON | mutated(st.sampled_from([*map(spec_of, SPECS), SERVED]))
STORED_STATUSES = JSON | mutated(st.sampled_from(HISTORIES))


@settings(max_examples=TRIES, suppress_health_check=list(HealthCheck))
@given(spec=STORED_SPECS, status=STORED_STATUSES, replicas=st.none() | st.integers(0, 3), ready=st.booleans())
def test_any_stored_object_gets_a_decision(spec: Any, status: Any, replicas: int | None, ready: bool) -> None:
    read = codec.load(status)
    pods = tuple(
        PodReading(f"p{number}", ready, False, NOW - 60, NOW - 30 if ready else None) for number in range(replicas or 0)
    )
    names = {name for name in (read.stable, read.canary, *(record.hash for record in read.revisions)) if name}
    decided(spec, read, {name: RevisionReading(name, replicas, pods) for name in names})


LONGEST = max(HISTORIES, key=lambda status: len(json.dumps(status)))


def fields(value: Any) -> list[tuple[str | int, ...]]:
    """Return one place of every field: of the entries of a list, which all have the same fields, the first that has it."""
    found: dict[tuple[str, ...], tuple[str | int, ...]] = {}
    for path in places(value):
        found.setdefault(tuple("*" if isinstance(key, int) else key for key in path), path)
    return list(found.values())


@pytest.mark.parametrize("path", fields(LONGEST), ids=lambda path: ".".join(map(str, path)))
def test_every_field_of_a_status_may_be_anything(path: tuple[str | int, ...]) -> None:
    """Values that are read alike get one decision: what a field cannot hold is read as if it were not there."""
    read = {repr(status): status for value in MUTATIONS for status in [codec.load(replaced(LONGEST, path, value))]}
    for status in read.values():
        assert isinstance(status, Status)
        names = {name for name in (status.stable, status.canary) if name}
        decided(SERVED, status, {name: RevisionReading(name, 1) for name in names})


@settings(max_examples=TRIES // 4, suppress_health_check=list(HealthCheck))
@given(st.lists(mutated(st.sampled_from(HISTORIES)), min_size=1, max_size=4), st.integers(0, 50))
def test_parts_that_are_remembered_change_no_status_and_no_json_of_one(stored: list[Any], first: int) -> None:
    parts = codec.Parts()
    for status in [*HISTORIES[first : first + 5], *stored, *stored]:
        if "NaN" in json.dumps(status):  # no API server stores it
            continue
        read = codec.load(copy.deepcopy(status), parts)
        assert repr(read) == repr(codec.load(status))
        for one in (read, replace(read, baseline=(), decisions=read.decisions[:1]), read):
            assert codec.dump(one, parts) == codec.dump(one)


def test_a_list_that_stays_is_neither_read_nor_written_again() -> None:
    parts = codec.Parts()
    one, two = (codec.load(copy.deepcopy(LONGEST), parts) for _ in range(2))
    assert two.decisions is one.decisions and two.rollout.failures is one.rollout.failures
    assert codec.dump(two, parts)["decisions"] is codec.dump(one, parts)["decisions"]


def test_parts_are_kept_as_long_as_they_are_asked_for() -> None:
    memo: dict[str, object] = {"status": "not ours"}
    assert codec.Parts.known(memo) is None
    parts = codec.Parts.of(memo, kept=True)
    assert parts is not None and codec.Parts.known(memo) is codec.Parts.of(memo, kept=True) is parts
    assert codec.Parts.of(memo, kept=False) is None and memo == {}


def test_numbers_that_json_cannot_hold_never_leave() -> None:
    read = codec.load({"scaling": [{"revision": "a", "startup": math.inf, "learned": "9999-12-31T23:59:59Z"}]})
    assert json.dumps(codec.dump(read), allow_nan=False)
