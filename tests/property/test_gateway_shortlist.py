"""Protects that a pick among many pods scores few of them, and that these are the ones that matter: the pods with the longest cached
beginning of the prompt, others by lot, and every pod where those that were drawn have failed."""

from __future__ import annotations

import json
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.prompts.prefixes import Prefixes
from pagefleet_gateway.picking.prompts.request_cost import block_hashes
from pagefleet_gateway.picking.ranking import BY_LOT, BY_PREFIX, shortlist

TEXT = "".join(f"{number:07} " for number in range(1000))
BLOCKS = block_hashes(TEXT.encode(), "smol")


def pods(count: int) -> list[Pod]:
    return [Pod(f"{i}", f"p{i}", "team", "chat", "a", f"10.0.{i // 250}.{i % 250 + 1}:8000") for i in range(count)]


@given(
    st.integers(0, 200), st.dictionaries(st.integers(0, 199), st.integers(1, len(BLOCKS)), max_size=40), st.randoms()
)
def test_the_shortlist_is_short_and_has_the_longest_prefixes(
    count: int, held: dict[int, int], draws: random.Random
) -> None:
    fleet, prefixes = pods(count), Prefixes()
    held = {index: length for index, length in held.items() if index < count}
    for index, length in held.items():
        prefixes.record(fleet[index].cache, BLOCKS[:length])
        assert prefixes.matched(fleet[index].cache, BLOCKS) == length
    some = shortlist(fleet, prefixes, BLOCKS, random.Random(draws.random()))
    names = [pod.uid for pod in some]
    assert len(set(names)) == len(names)
    if count <= 2 * (BY_LOT + BY_PREFIX):
        assert some is fleet
        return
    assert BY_LOT <= len(some) <= BY_LOT + BY_PREFIX
    longest = Counter(held.values())[max(held.values(), default=0)]
    best = [pod for pod in some if held.get(int(pod.uid)) == max(held.values(), default=0)]
    assert len(best) >= min(longest, BY_PREFIX)


def ask(picker: Picker, number: int, text: str) -> Pod:
    body = json.dumps({"model": "smol", "prompt": text}).encode()
    pick = picker.decide(Request(f"r{number}", "POST", "/team/chat/v1/completions", {}, body), 0.0)
    assert isinstance(pick, Pick)
    return pick.choices[0]


def fleet(count: int) -> tuple[Picker, Ledger, list[Pod]]:
    state, ledger, all_pods = State(), Ledger(), pods(count)
    state.put_service(Service("team", "chat", "smol", (("a", 100),)))
    state.replace_pods(all_pods)
    state.confirm(all_pods)
    return Picker(state, ledger, random.Random(5)), ledger, all_pods


def test_a_conversation_stays_on_its_pod_among_five_hundred() -> None:
    picker, ledger, _ = fleet(500)
    for number in range(60):  # other conversations with the same system prompt
        ask(picker, number, TEXT[:2000] + f"question {number} " * 100)
        ledger.close(f"r{number}")
    first = ask(picker, 100, TEXT)
    ledger.close("r100")
    for turn in range(101, 121):
        assert ask(picker, turn, TEXT + "and then? " * (turn - 100)) == first
        ledger.close(f"r{turn}")


def test_the_only_sound_pod_among_many_is_found() -> None:
    picker, ledger, all_pods = fleet(200)
    for pod in all_pods[:-1]:
        ledger.outliers.record_failure(pod.uid, 0.0)
    assert {ask(picker, number, f"hello {number}").uid for number in range(20)} == {all_pods[-1].uid}


def test_a_crowd_is_spread_over_many_pods_about_evenly() -> None:
    picker, _, _ = fleet(200)
    load = Counter(ask(picker, number, f"{number} " * 200).uid for number in range(2000))
    assert max(load.values()) <= 14 and len(load) == 200
