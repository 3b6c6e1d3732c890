"""Protects scheduling ahead of the device, draft tokens between, several answers to one prompt, and pages kept on the host: whatever the
sizes and the order of events, each answer is what its prompt leads to, every page that is read holds the right tokens, the KV events tell exactly what the device has cached, and no page is lost."""

from __future__ import annotations

import math
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.kv_events import View

from pagefleet_engine.core.kv_events import EventBatch, Journal, block_hash, events_of
from pagefleet_engine.core.limits import Limits, pinnable
from pagefleet_engine.core.offload import IN, OUT, HostIndex
from pagefleet_engine.core.overlap import PENDING, OverlapScheduler
from pagefleet_engine.core.requests import Batching, EngineRequest, SamplingParams, TokenOutput
from pagefleet_engine.core.work import Work

STEPS, EOS, VOCABULARY = 150, 3, 5


def following(tokens: list[int]) -> int:
    """The token that a text leads to: any function of all of it will do."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


def answer_to(request: EngineRequest, most: int, index: int) -> list[int]:
    """What the request must be answered with: several answers differ in their first tokens."""
    tokens = list(request.prompt_token_ids)
    answer: list[int] = []
    while len(answer) < request.sampling.max_tokens and len(tokens) < most:
        tokens.append((following(tokens) + (0 if answer else index)) % VOCABULARY)
        answer.append(tokens[-1])
        if answer[-1] == EOS:
            break
    return answer


class Device:
    """Pages that hold tokens. A step is carried out when it is launched; its results are looked at later."""

    def __init__(self, scheduler: OverlapScheduler) -> None:
        self.scheduler, self.size = scheduler, scheduler.limits.page_size
        self.pages: dict[int, list[int | None]] = {page: [None] * self.size for page in range(scheduler.limits.pages)}
        self.host: dict[int, list[int | None]] = {}
        self.last: dict[int, int] = {}

    def launch(self, work_items: list[Work]) -> list[int]:
        for direction, page, place in self.scheduler.take_moves():
            if direction == OUT:
                self.host[place] = self.pages[page][:]
            else:
                assert direction == IN
                self.pages[page] = self.host[place][:]
        self.pages |= {target: self.pages[origin][:] for origin, target in self.scheduler.take_copies()}  # all at once
        drawn = []
        for work in work_items:
            sequence = work.sequence
            tokens = [self.last[id(sequence)] if token == PENDING else token for token in work.tokens]
            for place, token in enumerate(tokens, work.start):
                self.pages[sequence.pages[place // self.size]][place % self.size] = token
        for work in work_items:
            if work.samples:
                sequence = work.sequence
                tokens_before = [
                    self.pages[sequence.pages[at // self.size]][at % self.size] for at in range(len(sequence.tokens))
                ]
                known = [token for token in sequence.tokens if token != PENDING]
                assert tokens_before[: len(known)] == known
                for ahead in range(work.drafts + 1):
                    text = [*tokens_before, *sequence.draft[:ahead]]
                    token = following([token for token in text if token is not None])
                    drawn += [(token + index) % VOCABULARY for index in range(work.answers)]
                self.last[id(sequence)] = drawn[-1]
        return drawn


def give_drafts(random: Random, scheduler: OverlapScheduler) -> None:
    """Give sequences that are past their prompts draft tokens, some of which are those that will be drawn."""
    for sequence in scheduler.running:
        if sequence.pending == 1:
            text = sequence.tokens[:]
            for _ in range(random.randint(0, 4)):
                text.append(following(text) if random.random() < 0.7 else random.randrange(VOCABULARY))
            sequence.draft = tuple(text[len(sequence.tokens) :])


def accepted(work: Work, drawn: list[int]) -> tuple[int, ...]:
    """The drawn tokens up to the first one that is not the draft token at its place."""
    agree = 0
    while agree < work.drafts and work.sequence.draft[agree] == drawn[agree]:
        agree += 1
    return tuple(drawn[: agree + 1])


def scenario(random: Random, scheduler: OverlapScheduler) -> None:
    device, sequences = Device(scheduler), []
    limits, pins = scheduler.limits, scheduler.pool.pins
    shared = [random.randrange(3) for _ in range(40)]
    open_ones: dict[str, EngineRequest] = {}
    left: dict[str, set[int]] = {}  # of each open request: its answers that have not ended
    generated: dict[tuple[str, int], list[int]] = {}
    flight: list[int] = []
    view = View()

    def take(outputs: list[TokenOutput]) -> None:
        for output in outputs:
            made = generated.setdefault((output.request_id, output.index), [])
            made += output.token_ids
            if output.finish_reason is not None:
                expected = answer_to(open_ones[output.request_id], limits.max_model_len, output.index)
                assert made == (expected[: len(made)] if output.finish_reason == "deadline" else expected)
                end(output.request_id, output.index)

    def end(name: str, index: int) -> None:
        left[name].remove(index)
        if not left[name]:
            del left[name], open_ones[name]

    def step(now: float, together: bool, drafted: bool = False) -> None:
        nonlocal flight
        take(scheduler.expire(now))
        if scheduler.in_flight and (scheduler.must_wait or drafted):
            take(scheduler.settle(flight))
        for sequence in scheduler.running:
            sequence.draft = ()
        if drafted:
            give_drafts(random, scheduler)
        work_items = scheduler.schedule(now)
        sequences.extend(work.sequence for work in work_items)  # ids stay theirs
        scheduler.check()
        drawn = device.launch(work_items)
        if scheduler.in_flight:
            take(scheduler.settle(flight))
        forks = any(work.samples and work.answers > 1 for work in work_items)
        if work_items and (together or drafted or forks):
            tokens = iter(drawn)
            results: list[tuple[tuple[int, ...], ...]] = []
            for work in work_items:
                own = [next(tokens) for _ in range((work.drafts + 1) * work.answers if work.samples else 0)]
                one = (accepted(work, own),) if own else ()
                results.append(tuple((token,) for token in own[: work.answers]) if work.answers > 1 else one)
            take(scheduler.commit(work_items, results))
        elif work_items:
            scheduler.advance(work_items)
            flight = drawn
        scheduler.check()
        if (journal := scheduler.pool.journal) is not None and random.random() < 0.5:
            view.take(msgspec.msgpack.encode(EventBatch(now, events_of(journal.take()))))
            assert view.blocks.keys() == {block_hash(digest) for digest in scheduler.pool.known}

    for now in range(STEPS):
        if random.random() < 0.4 and len(open_ones) < 8:
            name = str(now)
            prompt = shared[: random.randint(0, 30)] + [random.randrange(3) for _ in range(random.randint(1, 6))]
            request = EngineRequest(
                name, tuple(prompt), SamplingParams(random.randint(1, 12)), float(now),
                priority=random.choice((0, 0, 0, 1)), deadline=random.choice((None, None, None, now + 9.0)),
                n=random.choice((1, 1, 2, 3)),
            )  # fmt: skip
            if limits.refusal(request) is None:
                scheduler.add(request)
                open_ones[name], left[name] = request, set(range(request.n))
        if open_ones and random.random() < 0.05:
            name = random.choice(sorted(open_ones))
            assert scheduler.abort(name)
            del left[name], open_ones[name]
        begun = [(name, index) for name, indexes in left.items() for index in indexes if (name, index) in generated]
        if begun and random.random() < 0.1:  # a stop string has ended one answer
            name, index = random.choice(begun)
            assert scheduler.abort(name, index) == (index,)
            end(name, index)
        if random.random() < 0.1:
            tokens = shared[: random.randint(1, 40)]
            if pins.pages + len(tokens) // limits.page_size <= pins.most:
                scheduler.pin(str(tokens), tokens, b"", now + random.choice((3, 30, math.inf)))
        step(float(now), together=random.random() < 0.2, drafted=random.random() < 0.3)
    for now in range(STEPS, 60 * STEPS):
        if not (scheduler.running or scheduler.waiting or scheduler.in_flight):
            break
        step(float(now), together=False)
    assert not open_ones
    scheduler.expire(math.inf)
    assert scheduler.pool.available == scheduler.pool.total


@settings(max_examples=120)
@given(
    seed=st.integers(0, 2**32), page_size=st.sampled_from([1, 2, 4]), pages=st.integers(10, 40),
    seqs=st.integers(1, 5), budget=st.integers(1, 24), chunk=st.integers(1, 12), places=st.sampled_from([0, 1, 3, 20]),
    longest=st.sampled_from([14, 44]), share=st.sampled_from([0.0, 0.5, 1.0]),
)  # fmt: skip
def test_answers_and_pages_are_right_whatever_happens(
    seed: int,
    page_size: int,
    pages: int,
    seqs: int,
    budget: int,
    chunk: int,
    places: int,
    longest: int,
    share: float,
) -> None:
    limits = Limits(
        page_size, pages, seqs, budget, longest, VOCABULARY, Batching.CONTINUOUS, frozenset({EOS}), chunk,
        max_pinned_pages=pinnable(pages, share, page_size, longest),
    )  # fmt: skip
    scenario(Random(seed), OverlapScheduler(limits, places, Journal(page_size)))


def test_the_host_brings_pages_back() -> None:
    """A prompt whose pages were evicted is not computed a second time."""
    limits = Limits(4, 8, 2, 64, 40, VOCABULARY, Batching.CONTINUOUS, frozenset(), 32)
    scheduler = OverlapScheduler(limits, 16)
    device = Device(scheduler)

    def run(name: str, prompt: tuple[int, ...]) -> int:
        scheduler.add(EngineRequest(name, prompt, SamplingParams(1), 0.0))
        computed = 0
        while scheduler.running or scheduler.waiting:
            work_items = scheduler.schedule(0.0)
            computed += sum(work.count for work in work_items)
            drawn = iter(device.launch(work_items))
            scheduler.commit(work_items, [((next(drawn),),) if work.samples else () for work in work_items])
        return computed

    first, other = tuple([0, 1, 2] * 7), tuple([2, 2, 1] * 9)
    assert run("a", first) == 21
    assert run("b", other) == 27  # takes the pages of the first
    assert run("a again", first) == 1
    assert scheduler.prefix_hits == 20


@given(st.integers(1, 5), st.lists(st.integers(0, 9), max_size=60))
def test_the_host_keeps_what_was_used_last(places: int, used: list[int]) -> None:
    index, newest = HostIndex(places), []
    for number in used:
        index.put(bytes([number]))
        newest = [one for one in newest if one != number] + [number]
        assert [one for one in range(10) if bytes([one]) in index] == sorted(newest[-places:])
        index.check()


def test_a_lent_place_is_nobody_elses() -> None:
    index = HostIndex(1)
    assert index.put(b"a") == 0
    assert index.lend(b"a") == 0
    assert index.put(b"b") is None
    index.give_back(b"a", 0)
    assert index.put(b"b") == 0
    assert b"a" not in index


def test_tokens_that_nobody_awaits_are_an_error() -> None:
    scheduler = OverlapScheduler(Limits(4, 8, 2, 64, 40, VOCABULARY, Batching.CONTINUOUS, frozenset()))
    with pytest.raises(RuntimeError, match="no step"):
        scheduler.settle([])
    scheduler.add(EngineRequest("a", (1,), SamplingParams(3), 0.0))
    scheduler.advance(scheduler.schedule(0.0))
    with pytest.raises(RuntimeError, match="2 tokens came, 1 were awaited"):
        scheduler.settle([1, 2])
