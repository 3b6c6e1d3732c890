"""Protects the picking: total, bounded load, ejected pods last, no herd; hashes that chain; the cache estimate."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.picking.prompts.prefixes import HASH_BYTES, MAX_CAPACITY, SWEPT, Prefixes
from pagefleet_gateway.picking.prompts.request_cost import (
    BLOCK_BYTES,
    LONG_BLOCK_BYTES,
    MAX_BLOCKS,
    block_hashes,
    block_tokens,
)
from pagefleet_gateway.picking.score import FREE_BACKLOG, INTERFERENCE, MAX_LOAD_RATIO, PodLoad, costs, rank

COUNT = st.floats(0, 1e5)
LOADS = st.builds(
    PodLoad,
    COUNT,
    st.floats(0, 100),
    st.floats(0, 100),
    st.floats(0, 100),
    st.floats(0, 1),
    COUNT,
    st.booleans(),
    backlog_tokens=COUNT,
)
PODS = st.lists(LOADS, min_size=1, max_size=12)
ANY = st.floats()
WRONG = st.lists(st.builds(PodLoad, ANY, ANY, ANY, ANY, ANY, ANY, st.booleans(), st.booleans(), ANY), max_size=8)
TEXT = st.binary(max_size=5 * BLOCK_BYTES)


def order(pods: list[PodLoad], prompt: float, tokens: float, count: int, seed: int = 0) -> list[int]:
    return rank(range(len(pods)), pods.__getitem__, prompt, tokens, count, random.Random(seed))


@given(WRONG, ANY, ANY, st.integers(0, 10))
def test_any_observation_gives_an_order_of_the_pods(
    pods: list[PodLoad], prompt: float, tokens: float, count: int
) -> None:
    chosen = order(pods, prompt, tokens, count)
    assert len(chosen) == len(set(chosen)) == min(count, len(pods))


@given(PODS, st.floats(0, 5000), st.floats(0, 2000), st.data())
def test_an_ejected_pod_comes_after_all_others(
    pods: list[PodLoad], prompt: float, output: float, data: st.DataObject
) -> None:
    out = data.draw(st.sets(st.integers(0, len(pods) - 1)))
    pods = [replace(load, ejected=index in out) for index, load in enumerate(pods)]
    chosen = order(pods, prompt, prompt + output, len(pods))
    assert set(chosen[: len(pods) - len(out)]).isdisjoint(out)


@given(PODS, st.floats(0, 5000), st.floats(0, 2000))
def test_affinity_changes_nothing_for_a_pod_above_the_bound_with_prompts_to_compute(
    pods: list[PodLoad], prompt: float, output: float
) -> None:
    pods = [replace(load, in_flight_requests=1.0, foreign_requests=0.0) for load in pods]
    mean = (sum(load.in_flight_tokens for load in pods) + max(1.0, prompt + output)) / len(pods)
    plain = costs([replace(load, matched_tokens=0.0, has_adapter=False) for load in pods], prompt, prompt + output)
    with_affinity = costs(pods, prompt, prompt + output)
    for load, before, after in zip(pods, plain, with_affinity, strict=True):
        assert after <= before
        if load.in_flight_tokens > MAX_LOAD_RATIO * mean * (1 + 1e-9) and load.backlog_tokens > FREE_BACKLOG:
            assert after == before


@given(PODS, st.floats(0, 5000), st.floats(0, 2000), st.floats(1, 1e5), st.data())
def test_more_load_on_a_pod_never_makes_it_dearer_than_less_of_it(
    pods: list[PodLoad], prompt: float, output: float, extra: float, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(pods) - 1))
    pods = [
        replace(load, in_flight_requests=1.0, foreign_requests=0.0, waiting_requests=0.0, kv_usage=0.0) for load in pods
    ]
    load = pods[index]
    fuller = [*pods[:index], replace(load, in_flight_tokens=load.in_flight_tokens + extra), *pods[index + 1 :]]
    before, after = costs(pods, prompt, prompt + output), costs(fuller, prompt, prompt + output)
    assert after[index] >= before[index] - 1e-6


def test_equal_pods_share_and_a_crowd_with_one_prefix_is_spread() -> None:
    rng = random.Random(3)
    same = [PodLoad() for _ in range(4)]
    firsts = Counter(rank(range(4), same.__getitem__, 100, 200, 1, rng)[0] for _ in range(4000))
    assert all(abs(count - 1000) < 150 for count in firsts.values())
    # 400 requests at once, between two scrapes, whose prefix only pod 0 has. It takes a bounded part of them: as many more tokens in
    # flight as make an answer there slower than the prompt is long.
    tokens = [0.0] * 4
    for sent in range(400):
        loads = [PodLoad(tokens[i], sent / 4, matched_tokens=1000.0 * (i == 0)) for i in range(4)]
        tokens[rank(range(4), loads.__getitem__, 1000, 1200, 1, rng)[0]] += 1200
        assert tokens[0] <= max(MAX_LOAD_RATIO * sum(tokens) / 4, min(tokens[1:]) + 1000 / INTERFERENCE) + 2 * 1200
    assert max(tokens) <= 1.3 * min(tokens)


def test_what_decides_between_two_pods() -> None:
    idle = PodLoad()
    assert order([PodLoad(20_000, 10), idle], 100, 300, 1) == [1]
    assert order([PodLoad(waiting_requests=20), idle], 100, 300, 1) == [1]
    assert order([PodLoad(foreign_requests=20), idle], 100, 300, 1) == [1]
    assert order([PodLoad(kv_usage=1.0), idle], 100, 300, 1) == [1]
    assert order([PodLoad(matched_tokens=2000), idle], 2000, 2200, 1) == [0]
    assert order([PodLoad(has_adapter=True), idle], 100, 300, 1) == [0]


@given(TEXT, TEXT, TEXT, st.sampled_from(["", "m", "adapter"]))
def test_hashes_are_equal_exactly_as_far_as_the_text_is(shared: bytes, one: bytes, two: bytes, salt: str) -> None:
    first, second = block_hashes(shared + one, salt), block_hashes(shared + two, salt)
    assert len(first) == len(shared + one) // BLOCK_BYTES
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        end = (index + 1) * BLOCK_BYTES
        assert (left == right) == ((shared + one)[:end] == (shared + two)[:end])
    assert not set(first) & set(block_hashes(shared + one, salt + "x"))


def test_a_block_after_different_text_is_another_block() -> None:
    same = b"c" * BLOCK_BYTES
    assert block_hashes(b"a" * BLOCK_BYTES + same, "m")[1] != block_hashes(b"b" * BLOCK_BYTES + same, "m")[1]


@given(st.lists(TEXT, max_size=8), TEXT)
def test_the_cache_estimate_matches_what_was_sent_and_stays_bounded(sent: list[bytes], text: bytes) -> None:
    whole, small = Prefixes(), Prefixes(capacity=3)
    for each in sent:
        whole.record("1", block_hashes(each, "m"))
        small.record("1", block_hashes(each, "m"))
    blocks = block_hashes(text, "m")
    known = {block for each in sent for block in block_hashes(each, "m")}
    expected = next((index for index, block in enumerate(blocks) if block not in known), len(blocks))
    assert whole.matched("1", blocks) == expected
    assert small.matched("1", blocks) <= min(3, expected)
    assert whole.matched("2", blocks) == 0
    finish(whole.retain({"2"}))
    assert whole.matched("1", blocks) == 0


def test_a_cache_is_remembered_as_far_as_its_engine_says_that_it_reaches() -> None:
    long = random.Random(1).randbytes((MAX_BLOCKS * BLOCK_BYTES + 2 * LONG_BLOCK_BYTES) // 2).hex().encode()
    blocks = block_hashes(long, "m")
    assert len(blocks) == MAX_BLOCKS + 2 and block_tokens(len(blocks)) == 16_384 + 2_048
    prefixes = Prefixes()
    prefixes.resize("1", block_tokens(len(blocks)))
    prefixes.record("1", blocks)
    assert prefixes.matched("1", blocks) == len(blocks), "the larger blocks count as what they hold"
    prefixes.resize("1", block_tokens(len(blocks)) - 1024)
    assert prefixes.matched("1", blocks) == len(blocks) - 1, "what the prompt ends with leaves first"
    prefixes.record("1", block_hashes(b"x" * BLOCK_BYTES, "m"))
    assert prefixes.matched("1", blocks) == len(blocks) - 2
    prefixes.resize("1", 1)
    assert prefixes.matched("1", blocks) == 0
    finish(prefixes.retain(()))
    prefixes.record("1", blocks)
    assert prefixes.matched("1", blocks) == len(blocks), "a cache of which nothing is known"
    prefixes.resize("1", 1e300)
    for number in range(MAX_CAPACITY + 5):
        prefixes.record("1", [number.to_bytes(HASH_BYTES, "little")])
    assert prefixes.matched("1", [(0).to_bytes(HASH_BYTES, "little")]) == 0, "no engine can fill the gateway's memory"


def test_all_caches_together_are_bounded_each_by_an_equal_part() -> None:
    """A fleet of a thousand pods must not fill the gateway's memory: its pods remember less each, the latest blocks last."""
    prefixes = Prefixes(capacity=1000, total=4000)

    def blocks(pod: int) -> list[bytes]:
        return [(pod * 1000 + number).to_bytes(HASH_BYTES, "little") for number in range(1000)]

    def remembered() -> int:
        return sum(prefixes.matched(str(pod), [block]) for pod in range(40) for block in blocks(pod))

    for pod in range(4):
        prefixes.record(str(pod), blocks(pod))
    assert remembered() == 4000, "few pods remember all that their caches hold"
    for pod in range(4, 40):
        prefixes.record(str(pod), blocks(pod))
        prefixes.take_news()
    for _ in range(1000 // SWEPT):
        finish(prefixes.retain(set(map(str, range(40)))))
    assert remembered() == 4000
    assert all(prefixes.matched(str(pod), blocks(pod)) == 100 for pod in range(40)), "the beginnings of prompts"
    finish(prefixes.retain({"7"}))
    prefixes.record("7", blocks(7))
    assert prefixes.matched("7", blocks(7)) == 1000
