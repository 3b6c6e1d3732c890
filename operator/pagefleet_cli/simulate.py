"""`pagefleet simulate`: the cost of a scaling policy on a trace, and how well it meets its objectives. Touches no cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pagefleet_cli.base.errors import fail
from pagefleet_cli.base.output import terminal
from pagefleet_contract.names import KIND

if TYPE_CHECKING:  # numpy is only loaded when something is simulated
    from pagefleet_operator.domain.spec.parse import Spec
    from pagefleet_simulator.planner import Plan, Run

DEFAULT_SCALERS = "ours,hpa,kpa,keda,wva,dynamo"


def simulate(
    service: Annotated[Path, typer.Option(help="File of an InferenceService: its spec.scaling is simulated.")],
    name: Annotated[str | None, typer.Option(help="Name of the service, needed when the file has several.")] = None,
    trace: Annotated[
        str,
        typer.Option(
            help="builtin:NAME, a shape (steady, noise, step, burst, diurnal, heavy) or a whole workload (live-chat-spike, "
            "compliance-summaries, coding-questions, long-document, mixed-priorities); or a BurstGPT or Azure CSV."
        ),
    ] = "builtin:diurnal",
    scalers: Annotated[str, typer.Option(help="Autoscalers to compare, separated by commas.")] = DEFAULT_SCALERS,
    profile: Annotated[
        str, typer.Option(help="Throughput of a replica: a JSON file, or the name of a shipped profile.")
    ] = ("h100x4-llama-70b"),
    cost_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Cost of one accelerator; spec.cost.perAcceleratorHour when omitted.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Peak requests per second of a built-in trace; 70% of the capacity of scaling.max when omitted."
        ),
    ] = None,
    hours: Annotated[float | None, typer.Option(help="Length of a built-in trace; its own length when omitted.")] = (
        None
    ),
    speed: Annotated[float, typer.Option(help="Factor that speeds up the arrivals of a file.")] = 1.0,
    model: Annotated[str | None, typer.Option(help="Use only this model's rows of a BurstGPT file.")] = None,
    slo_ttft: Annotated[
        float | None,
        typer.Option(
            help="Objective for the time to first token, in seconds; scaling.target.ttft when omitted, else 2."
        ),
    ] = None,
    slo_tpot: Annotated[
        float | None,
        typer.Option(
            help="Objective for the mean seconds per token after the first; scaling.target.tpot when omitted, else 0.1."
        ),
    ] = None,
    quota: Annotated[int | None, typer.Option(help="Accelerators of the cluster; no limit when omitted.")] = None,
    mode: Annotated[str, typer.Option(help="requests, fluid, or auto: fluid above 400,000 requests.")] = "auto",
    calibrate: Annotated[
        bool, typer.Option(help="Tune the targets of the other autoscalers on a separate trace first.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers: the same seed gives the same run.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write report.json and replicas.svg into this folder.")] = None,
) -> None:
    """Simulate a scaling policy on a trace: its cost and latency beside those of other autoscalers."""
    from pagefleet_simulator.fleet.profile import ProfileError
    from pagefleet_simulator.planner import PlanError, Request, holding, left_out, plan, priorities
    from pagefleet_simulator.traces.replay import TraceError

    spec = _spec(service, name)
    hold, held = holding(spec)
    price = cost_per_hour if cost_per_hour is not None else spec.cost.per_accelerator_hour
    try:
        request = Request(
            scaling=spec.scaling,
            trace=trace,
            scalers=tuple(name.strip() for name in scalers.split(",") if name.strip()),
            profile=profile,
            rate=rate,
            hours=hours,
            speed=speed,
            model=model,
            ttft=slo_ttft,
            tpot=slo_tpot,
            quota=quota,
            mode=mode,
            calibrate=calibrate,
            seed=seed,
            promises=spec.slo.objectives,
            priorities=priorities(spec),
            hold=hold,
            held=held,
            left_out=left_out(spec),
        )
        prepared = plan(request)
        if report is not None:  # before the runs: they take too long to be lost
            _make(report)
        _run(prepared, price, report)
    except (PlanError, ProfileError, TraceError) as error:
        fail(str(error))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--report: {folder} cannot be written: {error.strerror or error}")


def _run(prepared: Plan, price: float | None, report: Path | None) -> None:
    from pagefleet_simulator.planner import execute, promises
    from pagefleet_simulator.results.report import promised, table

    console = terminal()
    console.print(prepared.description, markup=False)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=prepared.work)

        def progress(what: str, done: float) -> None:
            bar.update(task, description=what, completed=round(done))

        run = execute(prepared, progress)
    console.print(table(run.outcomes, prepared.objective, price, prepared.title))
    for name, setting in run.settings.items():
        console.print(f"{name}: {setting}", markup=False)
    if about := promises(run, prepared):
        console.print(promised(about))
    if price is None:
        console.print("No cost: give --cost-per-hour, or spec.cost.perAcceleratorHour.")
    if report is not None:
        _write(run, prepared, price, report)


def _write(run: Run, prepared: Plan, price: float | None, folder: Path) -> None:
    from pagefleet_simulator.planner import as_json
    from pagefleet_simulator.results.plots import PlotsMissing, draw

    console = terminal()
    (folder / "report.json").write_text(json.dumps(as_json(run, prepared, price), indent=1) + "\n")
    console.print(f"wrote {folder / 'report.json'}", markup=False)
    try:
        draw(run.outcomes, folder / "replicas.svg", prepared.title)
        console.print(f"wrote {folder / 'replicas.svg'}", markup=False)
    except PlotsMissing as error:
        console.print(str(error), markup=False)


def _spec(path: Path, name: str | None) -> Spec:
    from pagefleet_operator.domain.spec.parse import SpecErrors, parse

    try:
        services = [one for one in yaml.safe_load_all(path.read_text()) if _is_service(one)]
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except (yaml.YAMLError, ValueError) as error:
        fail(f"{path}: not YAML: {error}")
    names = ", ".join(sorted(map(_name, services)))
    if name is not None:
        services = [one for one in services if _name(one) == name]
        if not services:
            fail(f"--name: {path} has no InferenceService {name!r}, but {names or 'none'}")
    if len(services) != 1:
        fail(
            f"{path}: must hold exactly one InferenceService, not {len(services)}; choose with --name: {names or 'none'}"
        )
    spec = parse(services[0].get("spec"))
    if isinstance(spec, SpecErrors):
        fail(f"{path}: {spec.message}")
    return spec


def _name(service: dict[str, Any]) -> str:
    metadata = service.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _is_service(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind") == KIND
