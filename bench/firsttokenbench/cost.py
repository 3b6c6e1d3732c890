"""The cost of holding answers: the gateway beside the same gateway without the filter that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.gatewaybench import streams as token_streams
from bench.gatewaybench.systems import SYSTEMS, System
from bench.gatewaybench.traffic import RATE, Figures, added, engines, through


def _unheld(system: System) -> System:
    def command(port: int, ports: Sequence[int], folder: Path) -> list[str]:
        if system.command is None:
            raise RuntimeError("the gateway has no command")
        return [*system.command(port, ports, folder), "--unheld"]

    return replace(system, name="unheld", command=command)


OURS = next(one for one in SYSTEMS if one.name == "pagefleet")
COMPARED = (next(one for one in SYSTEMS if one.name == "direct"), OURS, _unheld(OURS))


def latency(quick: bool) -> Figures:
    """Measure what the gateway adds to the first token at 500 requests/s: long shared prompts, one token."""
    with engines():
        results = {one.name: through(one, rate=RATE, seconds=4.0 if quick else 12.0) for one in COMPARED}
    return added(results, "ttft")


def streams(quick: bool) -> Figures:
    """Measure what the gateway adds between two tokens of streams of 50 tokens/s."""
    seconds = 3.0 if quick else 10.0
    counts = (100,) if quick else (250, 500)
    return {str(count): token_streams.compared(count, seconds, COMPARED) for count in counts}
