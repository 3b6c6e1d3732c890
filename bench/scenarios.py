"""The workloads of examples/ at their numbers, on simulated GPUs: does each service keep its promises, and at what cost?

    python bench/scenarios.py [NAME...] [--seeds 3] [--quick] [--check] [--json FILE]

Plays each built-in workload of `pagefleet simulate` with the example of the same name: its `scaling`, its `slo`, its priorities. The
profile is derived from the accelerator's data sheet, not measured; time is virtual, so the figures do not depend on the machine.
Beside our scaler runs Kubernetes' HPA, which `pagefleet simulate` tunes on a calibration trace. Columns: the least share of requests
that kept a promise, by promise; accelerator-hours, cost per 1,000 tokens, replicas at most. Medians over the seeds, shares of the
worst seed.

`--check` exits 1 when our fleet breaks a promise with any seed. `--quick`: one seed, without HPA.
"""

from __future__ import annotations

import json as json_
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pagefleet_operator.domain.spec.parse import Spec, SpecErrors, parse
from pagefleet_simulator.planner import Plan, Request, execute, holding, plan, priorities, promises
from pagefleet_simulator.traces.workloads import WORKLOADS

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROFILES = {"long-document": "h100x4-llama-70b"}
PROFILE = "h100-llama-8b"
PER_HOUR = 3.0  # of one accelerator, in any currency
console = Console(width=160, highlight=False)


@dataclass(frozen=True)
class Result:
    """One workload with one scaler. `kept` maps a promise to the smallest share over the seeds that kept it."""

    workload: str
    profile: str
    scaler: str
    setting: str
    requests: int
    kept: dict[str, float]
    broken: list[str]
    hours: float
    per_1k_tokens: float
    most_replicas: int


def service(name: str) -> Spec:
    """The first service of the example."""
    document = next(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))
    spec = parse(document["spec"])
    if isinstance(spec, SpecErrors):
        raise ValueError(spec.message)
    return spec


def prepared(name: str, scalers: Sequence[str], seed: int) -> Plan:
    spec = service(name)
    hold, held = holding(spec)
    return plan(
        Request(
            spec.scaling,
            f"builtin:{name}",
            tuple(scalers),
            PROFILES.get(name, PROFILE),
            mode="requests",
            seed=seed,
            promises=spec.slo.objectives,
            priorities=priorities(spec),
            hold=hold,
            held=held,
        )
    )


def measure(name: str, scalers: Sequence[str], seeds: Sequence[int]) -> list[Result]:
    plans = [prepared(name, scalers, seed) for seed in seeds]
    runs = [execute(made) for made in plans]
    counted = [promises(run, made) for run, made in zip(runs, plans, strict=True)]
    results = []
    for index, scaler in enumerate(scalers):
        outcomes = [run.outcomes[index] for run in runs]
        about = [kept for one in counted for kept in one[outcomes[0].scaler]]
        shares: dict[str, float] = {}
        for kept in about:
            text = f"{kept.objective.name}: {kept.objective.promise}"
            shares[text] = min(shares.get(text, 1.0), 1.0 if kept.share is None else kept.share)
        costs = [one.cost_per_1k_tokens(PER_HOUR) or 0.0 for one in outcomes]
        results.append(
            Result(
                workload=name,
                profile=plans[0].profile.name,
                scaler=scaler,
                setting=runs[0].settings[scaler],
                requests=round(outcomes[0].requests),
                kept=shares,
                broken=sorted({kept.objective.name for kept in about if kept.broken}),
                hours=statistics.median(one.accelerator_hours for one in outcomes),
                per_1k_tokens=statistics.median(costs),
                most_replicas=max(moment.ready for one in outcomes for moment in one.timeline),
            )
        )
    return results


def shown(results: Sequence[Result]) -> Table:
    table = Table("workload", "profile", "scaler", "requests", "promise: kept by", "accel. h", "per 1k tok", "replicas")
    for one in results:
        lines = "\n".join(f"{text}: {share:.2%}" for text, share in one.kept.items())
        table.add_row(
            one.workload, one.profile, one.scaler, str(one.requests), lines, f"{one.hours:.1f}", f"{one.per_1k_tokens:.5f}",
            str(one.most_replicas), end_section=True,
        )  # fmt: skip
    return table


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(WORKLOADS)}")] = None,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    quick: Annotated[bool, typer.Option("--quick")] = False,
    check: Annotated[bool, typer.Option("--check")] = False,
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Play the workloads."""
    asked = names or list(WORKLOADS)
    if unknown := sorted(set(asked) - set(WORKLOADS)):
        raise typer.BadParameter(f"{', '.join(unknown)}: the workloads are {', '.join(WORKLOADS)}")
    scalers, drawn = (["ours"], range(1)) if quick else (["ours", "hpa"], range(seeds))
    results: list[Result] = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for name in bar.track(asked, description="workloads"):
            results += measure(name, scalers, drawn)
    console.print(shown(results))
    console.print(f"one accelerator costs {PER_HOUR:g} an hour; shares are those of the worst of {len(drawn)} seeds")
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(json_.dumps([asdict(one) for one in results], indent=1) + "\n")
    missed = [f"{one.workload}: {', '.join(one.broken)}" for one in results if one.scaler == "ours" and one.broken]
    if check:
        console.print("\n".join(f"broken: {line}" for line in missed) or "every promise is kept")
        raise typer.Exit(1 if missed else 0)


if __name__ == "__main__":
    typer.run(main)
