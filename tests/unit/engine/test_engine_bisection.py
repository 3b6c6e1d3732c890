"""Protects how a batch that raises is searched for the sequences that make it raise, and how a scheduler gives what it has
not begun to another."""

from __future__ import annotations

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.scheduler_steps import LIMITS, request, results, run, step

from pagefleet_engine.core.overlap import OverlapScheduler
from pagefleet_engine.core.requests import EngineRequest, SamplingParams
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.recovery import bisected, report


def works(count: int) -> list[Work]:
    return [
        Work(TokenSequence(EngineRequest(str(index), (1,), SamplingParams(1), 0.0), index, b"", [1], runs=True), 0, 1)
        for index in range(count)
    ]


@given(st.integers(0, 70), st.sets(st.integers(0, 69), max_size=5))
def test_every_work_is_computed_once_or_raises_alone(count: int, culprits: set[int]) -> None:
    culprits = {index for index in culprits if index < count}
    batch, tried = works(count), 0

    def compute(part: list[Work]) -> list[str]:
        nonlocal tried
        tried += 1
        names = [work.sequence.request_id for work in part]
        if present := [name for name in names if int(name) in culprits]:
            raise ValueError(present)
        return names

    parts = list(bisected(batch, compute))
    assert [work for part, _ in parts for work in part] == batch
    for part, result in parts:
        names = [work.sequence.request_id for work in part]
        if isinstance(result, Exception):
            assert [int(name) for name in names] == [index for index in culprits if [str(index)] == names]
        else:
            assert result == names
    assert sum(isinstance(result, Exception) for _, result in parts) == len(culprits)
    depth = log2(count) + 1 if count > 1 else 1
    assert tried <= 1 + 2 * depth * len(culprits)


def test_what_ends_with_a_part_is_not_computed_in_the_next() -> None:
    batch = works(4)

    def compute(part: list[Work]) -> int:
        if len(part) == 4:
            raise MemoryError
        return len(part)

    parts = []
    for part, result in bisected(batch, compute):
        parts.append((len(part), result))
        batch[2].sequence.runs = False
    assert parts == [(2, 2), (1, 1)]


def test_what_is_not_an_error_of_a_request_is_not_searched() -> None:
    def compute(part: list[Work]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(bisected(works(4), compute))


def test_a_report_is_one_line_that_names_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("line\nbreak")
    except ValueError as error:
        report("because", error, "cmpl-1-0")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert '"request": "cmpl-1-0"' in line and "ValueError" in line


@pytest.mark.parametrize("wrong", [-1, LIMITS.vocab_size])
def test_a_token_that_is_none_ends_its_request_and_is_not_taken(wrong: int) -> None:
    scheduler = Scheduler(LIMITS)
    for name in ("a", "b"):
        scheduler.add(request(name, 5))
    scheduler.add(EngineRequest("c", (1, 2, 3), SamplingParams(4), 0.0, n=3))
    batch = scheduler.schedule(1.0)
    tokens = results(batch, 7)
    for index, work in enumerate(batch):
        if work.sequence.request_id == "a":
            tokens[index] = ((wrong,),)
        if work.sequence.request_id == "c":
            tokens[index] = ((7,), (7,), (wrong,))
    outputs = scheduler.commit(batch, tokens)
    scheduler.check()
    assert [(one.request_id, one.index, one.token_ids, one.finish_reason) for one in outputs] == [
        ("a", 0, (), "error"), ("b", 0, (7,), None), ("c", 0, (), "error"), ("c", 1, (), "error"), ("c", 2, (), "error"),
    ]  # fmt: skip
    assert {one.request_id for one in run(scheduler)} == {"b"}


def test_a_token_of_the_device_that_is_none_ends_its_request() -> None:
    scheduler = OverlapScheduler(LIMITS)
    for name in ("a", "b"):
        scheduler.add(request(name, 5))
    for tokens in ([7, 8], [-9, 8]):
        scheduler.advance(scheduler.schedule(1.0))
        outputs = scheduler.settle(tokens)
    assert [(one.request_id, one.token_ids, one.finish_reason) for one in outputs] == [
        ("a", (), "error"), ("b", (8,), None),
    ]  # fmt: skip
    scheduler.check()
    assert [one.request_id for one in scheduler.running] == ["b"]


def test_a_new_scheduler_takes_what_had_not_begun_in_its_order() -> None:
    before, after = Scheduler(LIMITS), Scheduler(LIMITS)
    for name in "abcdefghijkl":
        before.add(request(name, 4, priority=int(name == "k")))
    step(before)
    begun = [one.request_id for one in before.running]
    waiting = [one.request_id for one in before.waiting]
    assert len(begun) > 1 and "k" in begun and len(waiting) > 1
    outputs = after.inherit(before)
    assert [one.request_id for one in outputs] == begun
    assert {one.finish_reason for one in outputs} == {"error"}
    assert [one.request_id for one in after.waiting] == waiting
    after.add(request("a", 4))  # its name is free again, and it comes after all
    assert [one.request_id for one in after.waiting] == [*waiting, "a"]
    finished = {one.request_id for one in run(after) if one.finish_reason == "length"}
    assert finished == {*waiting, "a"}
