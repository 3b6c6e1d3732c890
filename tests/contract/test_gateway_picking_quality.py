"""Protects the picker's choices as users feel them: time to the first token in a simulated fleet, whose engines cache a real
tokenizer's blocks. `bench/gateway_picking.py --check` has more loads and seeds, in the night."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bench is no installed package

from bench.gatewaybench.policies import Pagefleet
from bench.gatewaybench.simulation import ENGINES, compare, simulate
from bench.gatewaybench.trace import trace

COUNT, RATE, SEED = 1500, 120.0, 1


def test_p95_beats_round_robin_and_the_published_scoring_and_many_gateways_pick_like_one() -> None:
    results = compare(COUNT, RATE, SEED)
    ours, published = results["pagefleet"], results["llm-d 2/2/3"]
    assert ours.p95 <= 0.7 * results["round robin"].p95
    assert ours.p95 <= 0.9 * published.p95
    eight = simulate(Pagefleet(ENGINES, SEED, gateways=8), trace(COUNT, RATE, SEED))
    assert eight.p95 <= min(1.5 * ours.p95, published.p95)
    assert eight.hit_rate >= ours.hit_rate - 0.03
