"""The runs: jobs, their results, and a store of the others' results by job."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.spec.schema.targets import Targets
from pagefleet_simulator.fleet.view import Bounds, Scaler
from pagefleet_simulator.results.outcome import Objective
from pagefleet_simulator.scalers.catalog import PEERS, candidates_of
from pagefleet_simulator.scalers.ours import Ours
from pagefleet_simulator.simulation import Setting, Simulation
from scalerbench.cases import EVERY, MAX_REPLICAS, initial, means, trace

OBJECTIVE = Objective(ttft=2.0, tpot=0.1)
SCALING = Scaling(min=1, max=MAX_REPLICAS, target=Targets(ttft=OBJECTIVE.ttft, tpot=OBJECTIVE.tpot))
OURS = "ours"
# `scaling.headroom` of ours' settings; the first is the default, which is compared with the others on every case.
HEADROOMS = (0.0, 0.5, 0.75, 1.0, 2.0, 5.0)
# Between one replica and its maximum KEDA is the HPA that it creates (a test asserts it).
FAMILIES = tuple(name for name in PEERS if name != "keda")


@dataclass(frozen=True)
class Job:
    """One run. `index` is the setting's place among the family's candidates, or, of ours, in HEADROOMS."""

    case: str
    seed: int
    family: str
    index: int
    short: bool
    published: Path | None

    def scaler(self) -> Scaler:
        if self.family == OURS:
            startup, scaling = EVERY[self.case].startup, replace(SCALING, headroom=HEADROOMS[self.index])
            return Ours(scaling if startup is None else replace(scaling, startup=startup))
        lengths = means(trace(self.case, self.seed, self.short, self.published).arrivals)
        return candidates_of(self.family, EVERY[self.case].profile, SCALING, OBJECTIVE, lengths)[self.index]

    @property
    def key(self) -> str:
        return f"{self.case}/{self.seed}/{self.family}/{self.index}/{'short' if self.short else 'full'}"


@dataclass(frozen=True)
class Result:
    attainment: float
    hours: float
    events: int
    flaps: int
    dropped: float


def run(job: Job) -> Result:
    case, made = EVERY[job.case], trace(job.case, job.seed, job.short, job.published)
    bounds = Bounds(1, MAX_REPLICAS)
    setting = Setting(case.profile, bounds, initial(made), seed=job.seed, faults=case.faults(made.seconds))
    outcome = Simulation(setting, job.scaler(), made.arrivals, made.seconds).run()
    return Result(
        outcome.attainment(OBJECTIVE),
        outcome.accelerator_hours,
        len(outcome.events),
        outcome.flaps,
        outcome.dropped,
    )


@dataclass
class Store:
    """Results of earlier runs by `Job.key`, one JSON object a line; ours is always run again."""

    path: Path | None
    known: dict[str, Result]

    @classmethod
    def open(cls, path: Path | None) -> Store:
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        return cls(path, {entry["job"]: Result(**entry["result"]) for entry in map(json.loads, lines)})

    def add(self, job: Job, result: Result) -> None:
        self.known[job.key] = result
        if self.path is not None and job.family != OURS:
            with self.path.open("a") as file:
                print(json.dumps({"job": job.key, "result": vars(result)}), file=file)


def everything(jobs: list[Job], processes: int, what: str, store: Store) -> dict[Job, Result]:
    """The results of the jobs; only what the store does not know is run."""
    missing = [job for job in dict.fromkeys(jobs) if job.key not in store.known]
    with Progress(console=Console(stderr=True)) as bar, ProcessPoolExecutor(processes) as pool:
        task = bar.add_task(what, total=len(missing))
        for job, result in zip(missing, pool.map(run, missing), strict=True):
            store.add(job, result)
            bar.advance(task)
    return {job: store.known[job.key] for job in jobs}
