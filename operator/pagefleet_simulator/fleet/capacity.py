"""The requests per second that one replica of a profile can serve forever. Traces are sized by it; no scaler uses it."""

from __future__ import annotations

from pagefleet_simulator.fleet.profile import Profile


def sustainable(profile: Profile, prompt: float, output: float) -> float:
    """The requests per second of a full batch, for requests of these mean lengths (tokens)."""
    context = prompt + output / 2
    batch = max(1.0, min(profile.max_sequences, profile.capacity / (prompt + output)))
    step = profile.step
    # A request takes the time of its own prompt, and an equal share of the step of each of its tokens.
    seconds = prompt * step.prefill + output * (step.base / batch + step.decode + step.kv * context)
    return 1 / seconds
