"""How many requests per second one replica carries within latency targets, by a queueing model of its engine.

A replica with n requests runs min(n, batch) of them and the rest wait: a birth-death chain with service rates that depend on the state
(the model of llm-d's workload-variant-autoscaler, arXiv:2603.09730, and of github.com/llm-inferno/queue-analysis). Scalers of other
projects learn or profile such numbers; here they get them exactly, from the profile. Times are in seconds, lengths in tokens.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import accumulate

from pagefleet_simulator.fleet.profile import Profile

STEPS = 40  # of the bisection


def batch(profile: Profile, prompt: float, output: float) -> int:
    """The most requests of these mean lengths that run at once."""
    return max(1, int(min(profile.max_sequences, profile.capacity / (prompt + output))))


def step(profile: Profile, running: int, prompt: float, output: float) -> float:
    """The mean seconds of a step: in one of a request's `output` steps its whole prompt is computed."""
    return profile.step.seconds(running * prompt / output, running, running * (prompt + output / 2))


def latencies(profile: Profile, rate: float, prompt: float, output: float) -> tuple[float, float]:
    """The mean time to the first token and the mean time per further token at `rate` requests per second."""
    most = batch(profile, prompt, output)
    steps = [step(profile, running, prompt, output) for running in range(1, most + 1)]
    served = [running / (output * seconds) for running, seconds in enumerate(steps, start=1)]
    served += [served[-1]] * profile.max_queued
    logs = [0.0, *accumulate(math.log(rate / one) for one in served)]
    highest = max(logs)
    weights = [math.exp(one - highest) for one in logs]
    running = sum(min(n, most) * weight for n, weight in enumerate(weights))
    waiting = sum(max(0, n - most) * weight for n, weight in enumerate(weights))
    accepted = rate * sum(weights[:-1])
    per_token = sum(min(n, most) * steps[min(n, most) - 1] * weight for n, weight in enumerate(weights) if n) / running
    chunks = math.ceil(prompt / profile.chunk_tokens)
    return waiting / accepted + prompt * profile.step.prefill + chunks * per_token, per_token


@cache
def highest_rate(profile: Profile, prompt: float, output: float, ttft: float, tpot: float) -> float:
    """The most requests per second at which both means stay within their targets."""
    low, high = (
        0.0,
        batch(profile, prompt, output) / (output * step(profile, batch(profile, prompt, output), prompt, output)),
    )
    for _ in range(STEPS):
        middle = (low + high) / 2
        first, further = latencies(profile, middle, prompt, output)
        low, high = (middle, high) if first <= ttft and further <= tpot else (low, middle)
    return max(low, 1e-6)


def velocity(profile: Profile, prompt: float, output: float, tpot: float) -> float:
    """Requests per second by TokenScale's velocities (arXiv:2512.03416): tokens of prompts computed per second, and tokens released per
    second by the largest batch whose step stays within `tpot`. An engine that does both gives each its share of the time."""
    decoding = [
        profile.step.seconds(0, n, n * (prompt + output / 2)) for n in range(1, batch(profile, prompt, output) + 1)
    ]
    released = max(
        (n * (prompt + output) / (output * seconds) for n, seconds in enumerate(decoding, start=1) if seconds <= tpot),
        default=(prompt + output) / (output * decoding[0]),
    )
    return 1 / (prompt * profile.step.prefill + (prompt + output) / released)
