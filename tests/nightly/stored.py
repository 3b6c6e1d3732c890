"""Results of a night as lines in build/nightly/KEY/results.jsonl, beside each job's log: a night that was stopped goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from nightly.plan import Result

RESULTS = "results.jsonl"


class Store:
    """`key` names the sources: results hold for no others."""

    def __init__(self, nights: Path, key: str) -> None:
        self._nights, self.folder = nights, nights / key
        self.folder.mkdir(parents=True, exist_ok=True)

    def results(self) -> list[Result]:
        return _read(self.folder / RESULTS)

    def put(self, result: Result) -> None:
        with (self.folder / RESULTS).open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")

    def forget(self) -> None:
        (self.folder / RESULTS).unlink(missing_ok=True)

    def log(self, name: str, quick: bool) -> Path:
        return self.folder / f"{name}{'.quick' if quick else ''}.log"

    def past(self) -> dict[tuple[str, bool], float]:
        """The seconds of each job the last time that it passed, whatever the sources were."""
        passed = [one for file in self._nights.glob(f"*/{RESULTS}") for one in _read(file) if one.passed]
        return {(one.name, one.quick): one.seconds for one in sorted(passed, key=lambda one: one.began)}


def _read(file: Path) -> list[Result]:
    if not file.exists():
        return []
    return [Result(**json.loads(line)) for line in file.read_text().splitlines() if line.endswith("}")]
