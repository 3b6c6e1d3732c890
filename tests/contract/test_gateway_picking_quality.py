"""Protects the picker's choices as users feel them: time to the first token in a simulated fleet, whose engines cache a real
tokenizer's blocks. `bench/gateway_picking.py --check` has more loads and seeds, in the night."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bench is no installed package

from bench.gatewaybench.peers import PEERS
from bench.gatewaybench.policies import Pagefleet
from bench.gatewaybench.simulation import ENGINES, simulate
from bench.gatewaybench.trace import trace

COUNT, RATE, SEED = 1500, 120.0, 1
# At most so many times a peer's p95. In a trace as short as this caches are cold for long, and affinity is nearer than in the bench.
MOST = {"round robin": 0.7, "llm-d 2/2/3": 0.9, "llm-d affinity": 1.0}


def test_p95_beats_round_robin_and_llm_d_and_many_gateways_pick_like_one() -> None:
    arrivals = trace(COUNT, RATE, SEED)
    ours = simulate(Pagefleet(ENGINES, SEED), arrivals)
    peers = {name: simulate(PEERS[name](ENGINES, SEED), arrivals).p95 for name in MOST}
    assert {name: round(ours.p95 / p95, 3) for name, p95 in peers.items() if ours.p95 > MOST[name] * p95} == {}
    eight = simulate(Pagefleet(ENGINES, SEED, gateways=8), arrivals)
    assert eight.p95 <= min(1.5 * ours.p95, peers["llm-d 2/2/3"])
    assert eight.hit_rate >= ours.hit_rate - 0.03
