"""The processor time of one pick, with 4, 128 and 1,000 pods of a service: the gateway's own picker on one thread, without Envoy.

Every request is a stream with a text that all share but for its end, and each pod has two requests in flight. `short` prompts have
100 tokens, and `long` ones 16,000. What is measured is what the picking loop does for a request: routing, reading the body, hashing
its text, scoring pods, and the books.
"""

from __future__ import annotations

import json
import random
import time

from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker

PODS = (4, 128, 1000)
TOKENS = {"short": 100, "long": 16_000}
WARM = 20  # picks that are not counted


def picks(quick: bool) -> dict[str, object]:
    """Milliseconds of a pick by the number of pods: the median and the 95th percentile."""
    rounds = 120 if quick else 600
    figures: dict[str, object] = {
        f"{pods} pods": {name: _measured(pods, tokens, rounds) for name, tokens in TOKENS.items()} for pods in PODS
    }
    return figures


def _measured(count: int, tokens: int, rounds: int) -> dict[str, float]:
    picker, ledger = _fleet(count)
    draws = random.Random(1)
    shared = draws.randbytes(2 * tokens).hex()
    taken = []
    for number in range(rounds + WARM):
        prompt = shared[:-16] + f"{draws.getrandbits(64):016x}"
        body = json.dumps({"model": "smol", "stream": True, "max_tokens": 200, "prompt": prompt}).encode()
        request = Request(f"r{number}", "POST", "/team/chat/v1/completions", {}, body)
        began = time.thread_time()
        pick = picker.decide(request, number * 0.001)
        taken.append(time.thread_time() - began)
        if not isinstance(pick, Pick):
            raise TypeError(f"refused: {pick}")
        if number >= 2 * count:
            ledger.close(f"r{number - 2 * count}")
    counted = sorted(taken[WARM:])
    return {"p50": round(counted[rounds // 2] * 1e3, 3), "p95": round(counted[rounds * 95 // 100] * 1e3, 3)}


def _fleet(count: int) -> tuple[Picker, Ledger]:
    state, ledger = State(), Ledger()
    pods = [
        Pod(str(index), f"p{index}", "team", "chat", "a", f"10.0.{index // 250}.{index % 250 + 1}:8000")
        for index in range(count)
    ]
    state.replace_pods(pods)
    state.confirm(pods)
    state.put_service(Service("team", "chat", "smol", (("a", 100),)))
    readings = Readings(ledger.known_in_flight)
    for pod in pods:
        readings.put(
            pod, b"vllm:num_requests_running 2\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.3\n", 0.0
        )
    finish(ledger.sweep(state.known, 0.0))
    return Picker(state, ledger, random.Random(1), readings), ledger
