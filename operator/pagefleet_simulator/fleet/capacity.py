"""How many requests a second one replica of a profile can serve for ever: to size traces, not to scale by."""

from __future__ import annotations

from pagefleet_simulator.fleet.profile import Profile


def sustainable(profile: Profile, prompt: float, output: float) -> float:
    """Requests per second of a full batch of requests of these mean lengths (tokens)."""
    context = prompt + output / 2
    batch = max(1.0, min(profile.max_sequences, profile.capacity / (prompt + output)))
    step = profile.step
    # A request takes its prompt's arithmetic, and of each of its tokens' steps an equal share.
    seconds = prompt * step.prefill + output * (step.base / batch + step.decode + step.kv * context)
    return 1 / seconds
