"""All requests at once: throughput, and the waits it costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cpubench import report, runs
from cpubench.measures import Measured
from cpubench.rounds import Rounds
from cpubench.systems import System
from cpubench.workload import Request


def measure(rounds: Rounds, systems: Sequence[System], requests: Sequence[Request]) -> list[Measured]:
    """Measure and show the systems; those that failed are missing."""
    steps = {system.name: rounds.least_disturbed(partial(_once, rounds, system, requests)) for system in systems}
    measured = rounds.every(steps)
    if measured:
        report.show(rounds.console, measured, {system.name: system for system in systems})
    return measured


def _once(rounds: Rounds, system: System, requests: Sequence[Request], log: Path) -> Measured:
    run = runs.measure(system, requests, log)
    rounds.say(f"  {run.tokens_per_s:.1f} tok/s in {run.makespan_s:.1f} s (others used {run.others_cpu:.0f} % CPU)")
    return run
