"""The simulator's prediction of a fleet held against the real one: replica-hours, and times to the first token.

    python bench/fleet_reality.py [--runs 3] [--quick] [--check] [--json FILE]

Needs root and what `make up` needs; starts the local fleet, and takes it down again unless it ran before. Requests arrive by a Poisson
process at a low, a high and a low rate. The real operator scales real engines on the local node between one replica and three. Each
replica has CPU_SHARE of a core (a LimitRange), as a node with an accelerator for each pod would have it: replicas that shared cores
would be slower the more there are of them, and the simulator knows no such thing.

The simulator gets the same requests' times and lengths, the same `spec.scaling`, a step time that is fitted to scrapes of the engine's
own `/metrics` (pagefleet_simulator.fleet.fit) during a calibration on one replica, and the start-up time that the operator learned from
that replica. Its answer is the median over SIMULATED seeds, because a pod's start is random in it. Replica-seconds count from a pod's
creation to its end, as an accelerator would be billed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cpubench import client, report, workload
from cpubench.measures import Answer, makespan, percentile
from cpubench.scraping import scraping
from scalingbench.field import NAMESPACE, Field, on_fleet, serving, startup

from pagefleet_local.demo.stage import sample
from pagefleet_local.fleet.kubectl import Document
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_simulator.fleet.fit import Fit, fit, scrapes
from pagefleet_simulator.fleet.profile import Profile, Startup
from pagefleet_simulator.fleet.request import Arrival
from pagefleet_simulator.fleet.view import Bounds
from pagefleet_simulator.scalers.ours import Ours
from pagefleet_simulator.simulation import Setting, Simulation

CPU_SHARE = "450m"
PAGES, PAGE, SEQUENCES, STEP_TOKENS = 512, 16, 8, 512
TARGET_SECONDS = 2.0
SCALING = {"min": 1, "max": 3, "target": {"ttft": {"p95": f"{TARGET_SECONDS:g}s"}}}
PHASES = ((0.4, 120.0), (1.6, 180.0), (0.3, 240.0))  # fraction of one replica's saturation, seconds
QUICK_PHASES = ((0.4, 30.0), (1.6, 90.0), (0.3, 60.0))
CALIBRATION = (0.4, 0.8)  # fractions of the saturation
CALIBRATED_REQUESTS = 30
SIMULATED = 9
MODEL, METRICS_PORT, LOOK_SECONDS, TIMEOUT = "smollm2", 8000, 0.5, 900.0
TOKENS = (1000, 40_000)  # of prompts: plain tokens of the vocabulary, drawn anew, so that no prefix is shared
MAX_ERROR = 0.08


@dataclass(frozen=True)
class Figures:
    """`attained` is the share of requests whose first token came within the target."""

    replica_seconds: float
    most_replicas: int
    ttft_p50: float
    ttft_p95: float
    attained: float


@dataclass(frozen=True)
class Compared:
    seed: int
    requests: int
    measured: Figures
    predicted: Figures

    def error(self, name: str) -> float:
        return abs(getattr(self.predicted, name) / getattr(self.measured, name) - 1)


@dataclass(frozen=True)
class Known:
    """The replica as it was calibrated: requests a second with all sent at once, and seconds to start."""

    fitted: Fit
    saturation: float
    startup: float

    def profile(self) -> Profile:
        started = Startup(schedule=0.5, pull=0.0, load=self.startup - 0.5, sigma=0.1, cached=1.0)
        return Profile("measured", self.fitted.step, PAGES, PAGE, STEP_TOKENS, STEP_TOKENS, SEQUENCES, startup=started)


def main() -> int:
    parser = argparse.ArgumentParser(description="The simulator beside a real fleet that scales.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run of three minutes")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    runs, phases = (1, QUICK_PHASES) if given.quick else (given.runs, PHASES)
    return verdict(on_fleet(lambda field: measured(field, runs, phases)), given.check, given.json)


async def measured(field: Field, runs: int, phases: Sequence[tuple[float, float]]) -> list[Compared]:
    await field.kubectl.apply(share())
    known, compared = await calibrated(field), []
    fitted = known.fitted
    print(
        f"saturation {known.saturation:.2f} requests/s, {known.startup:.1f} s to start; {fitted.step}, "
        f"mean error {fitted.error:.1%} of {fitted.samples} scrapes",
        flush=True,
    )
    for seed in range(runs):
        compared.append(await compare(field, known, seed, phases))
        show(compared[-1])
    return compared


def share() -> dict[str, Any]:
    limits = [{"type": "Container", "default": {"cpu": CPU_SHARE}, "defaultRequest": {"cpu": "100m"}}]
    metadata = {"name": "cpu-share", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}


def service(name: str, scaling: dict[str, Any]) -> Document:
    """The sample service without what the simulator does not know, such as draft tokens."""
    document = sample()
    document["metadata"] = {"name": name, "namespace": NAMESPACE}
    spec = document["spec"]
    spec["scaling"] = scaling
    spec["model"]["speculation"] = {"method": "none"}
    spec["engine"]["args"] = [f"--max-num-seqs={SEQUENCES}", f"--max-num-batched-tokens={STEP_TOKENS}"]
    spec["engine"]["kvCache"] = {"pageSize": PAGE, "pages": PAGES}
    return document


async def calibrated(field: Field) -> Known:
    """One replica under three loads, read from its own `/metrics`."""
    name = "calibrated"
    await field.kubectl.apply(service(name, {"min": 1, "max": 1}))
    await field.when(lambda view, pods: view.is_true("Ready") and serving(pods) == 1, name, "a replica", TIMEOUT)
    listed = await field.kubectl.list("pods", NAMESPACE, f"pagefleet.io/service={name}")
    address = f"http://{listed[0]['status']['podIP']}:{METRICS_PORT}/metrics"
    with scraping(address) as pages:
        most = CALIBRATED_REQUESTS / makespan(await drive(field, name, requests(CALIBRATED_REQUESTS, 1000)))
        for part, fraction in enumerate(CALIBRATION, 1001):
            await drive(field, name, workload.spread(requests(CALIBRATED_REQUESTS, part), fraction * most, part))
    known = Known(fit(scrapes(pages, PAGE)), most, startup(await field.view(name)))
    await field.remove(name)
    return known


async def drive(field: Field, name: str, asked: Sequence[workload.Request]) -> list[Answer]:
    return await client.drive(f"{field.gateway}/{NAMESPACE}/{name}", MODEL, asked, TIMEOUT)


def requests(count: int, seed: int) -> list[workload.Request]:
    """Requests of the lengths of `cpubench.workload`, all at once."""
    generator = random.Random(seed)
    return [
        workload.Request(
            tuple(generator.randrange(*TOKENS) for _ in range(workload.PROMPTS.draw(generator))),
            workload.OUTPUTS.draw(generator),
            temperature=1.0,
        )
        for _ in range(count)
    ]


def arriving(phases: Sequence[tuple[float, float]], saturation: float, seed: int) -> list[workload.Request]:
    """A Poisson process of the phases' rates, one after the other."""
    generator, at, start = random.Random(f"arrivals {seed}"), [], 0.0
    for fraction, seconds in phases:
        now = start
        while (now := now + generator.expovariate(fraction * saturation)) < start + seconds:
            at.append(now)
        start += seconds
    drawn = requests(len(at), seed)
    return [workload.Request(one.prompt, one.output, when, 1.0) for one, when in zip(drawn, at, strict=True)]


async def compare(field: Field, known: Known, seed: int, phases: Sequence[tuple[float, float]]) -> Compared:
    """A new service of one ready replica gets the requests; then the simulator does."""
    name, asked = f"run-{seed}", arriving(phases, known.saturation, seed)
    scaling = {**SCALING, "startup": f"{round(known.startup)}s"}
    duration = sum(seconds for _, seconds in phases)
    await field.kubectl.apply(service(name, scaling))
    await field.when(lambda view, pods: view.is_true("Ready") and serving(pods) == 1, name, "a replica", TIMEOUT)
    counting = asyncio.create_task(counted(field, name, duration))
    answers = await drive(field, name, asked)
    area, most = await counting
    await field.remove(name)
    first = [one.times[0] - one.sent for one in answers]
    return Compared(seed, len(asked), figures(area, most, first), predicted(known, asked, scaling, duration))


async def counted(field: Field, name: str, duration: float) -> tuple[float, int]:
    """The replica-seconds of `duration` seconds, and the most pods at a time."""
    area, most, began = 0.0, 0, time.monotonic()
    last = began
    while last - began < duration:
        pods = len(await field.pods(name))
        now = min(time.monotonic(), began + duration)
        area, most, last = area + pods * (now - last), max(most, pods), now
        await asyncio.sleep(LOOK_SECONDS)
    return area, most


def predicted(known: Known, asked: Sequence[workload.Request], raw: dict[str, Any], duration: float) -> Figures:
    parsed = parse(service("predicted", raw)["spec"])
    if not isinstance(parsed, Spec):
        raise TypeError(f"no spec: {parsed}")
    arrivals = [Arrival(one.at, len(one.prompt), one.output) for one in asked]
    bounds = Bounds(parsed.scaling.min, parsed.scaling.max)
    found = []
    for seed in range(SIMULATED):
        setting = Setting(known.profile(), bounds, seed=seed, prefix_caching=False)
        outcome = Simulation(setting, Ours(parsed.scaling), arrivals, duration).run()
        most = max(moment.ready + moment.starting for moment in outcome.timeline)
        found.append(figures(outcome.accelerator_seconds, most, list(outcome.latencies.ttft)))
    return Figures(**{name: median(getattr(one, name) for one in found) for name in asdict(found[0])})


def figures(area: float, most: int, first: Sequence[float]) -> Figures:
    attained = sum(one <= TARGET_SECONDS for one in first) / len(first)
    return Figures(float(area), most, float(percentile(first, 50)), float(percentile(first, 95)), float(attained))


def show(one: Compared) -> None:
    real, model = one.measured, one.predicted
    print(
        f"run {one.seed}, {one.requests} requests: replica-seconds {real.replica_seconds:.0f} (predicted {model.replica_seconds:.0f}), "
        f"most replicas {real.most_replicas} ({model.most_replicas:g}), ttft p50 {real.ttft_p50:.2f} s ({model.ttft_p50:.2f}), "
        f"p95 {real.ttft_p95:.2f} s ({model.ttft_p95:.2f}), within the target {real.attained:.1%} ({model.attained:.1%})",
        flush=True,
    )


def verdict(compared: Sequence[Compared], check: bool, path: Path | None) -> int:
    errors = {name: median(one.error(name) for one in compared) for name in ("replica_seconds", "ttft_p95")}
    for name, error in errors.items():
        word = "MISSED" if error > MAX_ERROR else "met"
        print(f"{word}: median error of {name} over {len(compared)} runs {error:.1%} (<= {MAX_ERROR:.0%})")
    if path:
        content = {"machine": report.machine(), "errors": errors, "runs": [asdict(one) for one in compared]}
        path.write_text(json.dumps(content, indent=1) + "\n")
    return int(check and any(error > MAX_ERROR for error in errors.values()))


if __name__ == "__main__":
    raise SystemExit(main())
