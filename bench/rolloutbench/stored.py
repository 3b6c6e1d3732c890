"""Rollouts that an earlier run has played, as JSON lines: a campaign of hours may be stopped and goes on where it was.

A result holds while the sources of the operator, the gateway, the contract and this bench are the same bytes. Another state of
them has another file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from bench.rolloutbench.scenario import Scenario
from bench.rolloutbench.world import Result

from pagefleet_local.base.sources import digest, python_files

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/rollout_guard"
SOURCES = ("operator/pagefleet_operator", "gateway/pagefleet_gateway", "contract", "bench/rolloutbench")


class Stored:
    """The results in one file; a line that a stopped run has half written counts as absent."""

    def __init__(self, path: Path | None = None) -> None:
        files = python_files(*(ROOT / name for name in SOURCES))
        self._path = path or FOLDER / f"{digest(files, ROOT)}.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._known: dict[str, Result] = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                self._known[entry["job"]] = Result(**entry["result"])

    def get(self, scenario: Scenario, seed: int) -> Result | None:
        """Return the result of a rollout, None if it has not been played."""
        return self._known.get(_job(scenario, seed))

    def put(self, scenario: Scenario, seed: int, result: Result) -> None:
        """Append a result. It starts a line of its own, whatever the line before is."""
        job = _job(scenario, seed)
        self._known[job] = result
        with self._path.open("a") as file:
            file.write("\n" + json.dumps({"job": job, "name": scenario.name, "seed": seed, "result": asdict(result)}))


def _job(scenario: Scenario, seed: int) -> str:
    return hashlib.sha256(f"{scenario!r}/{seed}".encode()).hexdigest()[:24]
