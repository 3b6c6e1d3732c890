"""Turns a capacity planner's request into runs: the trace, the profile, the scalers, and the simulation.

It chooses the sizes that were not given, simulates through `simulation` and `fluid`, and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pagefleet_contract.slo import Objective as Promise
from pagefleet_contract.traffic import hold_seconds
from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_simulator.calibrate import calibrate
from pagefleet_simulator.fleet import profile as profiles
from pagefleet_simulator.fleet.capacity import sustainable
from pagefleet_simulator.fleet.profile import Profile
from pagefleet_simulator.fleet.view import Bounds, Scaler
from pagefleet_simulator.fluid import FluidSimulation
from pagefleet_simulator.results.outcome import Objective, Outcome
from pagefleet_simulator.results.promises import Kept, kept
from pagefleet_simulator.results.report import as_numbers, summary, timeline
from pagefleet_simulator.scalers.catalog import NAMES, candidates_of, describe
from pagefleet_simulator.simulation import Setting, Simulation
from pagefleet_simulator.traces import replay, synthetic, workloads
from pagefleet_simulator.traces.flow import flow
from pagefleet_simulator.traces.synthetic import Trace

PRIORITY = "priority"  # of spec.engine.scheduling.policy
MANY = 400_000  # requests from which on mode "auto" takes the fluid simulation
USED = 0.7  # of the largest fleet, that a built-in trace's peak needs
CALIBRATION_SEED = 1_000_003
CALIBRATION_HOURS = 1.0


class PlanError(ValueError):
    """An impossible request; the message names the option and the allowed values."""


@dataclass(frozen=True)
class Request:
    """The request; None where the planner chooses. `ttft` and `tpot` are in seconds, `quota` in accelerators. `promises` are those
    of `spec.slo`; `priorities` are the classes by which the engine's scheduler goes, the most important first. Of the requests
    that come while no replica is ready, gateways hold `held`, each for `hold` seconds at most. `left_out` is what is not simulated."""

    scaling: Scaling
    trace: str = "builtin:diurnal"
    scalers: tuple[str, ...] = NAMES
    profile: str = "h100x4-llama-70b"
    rate: float | None = None
    hours: float | None = None
    speed: float = 1.0
    model: str | None = None
    ttft: float | None = None
    tpot: float | None = None
    quota: int | None = None
    mode: str = "auto"
    calibrate: bool = True
    seed: int = 0
    promises: tuple[Promise, ...] = ()
    priorities: tuple[str, ...] = ()
    hold: float = 600.0
    held: int = 4096
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The runs to make, with their inputs."""

    trace: Trace
    calibration: Trace | None
    profile: Profile
    setting: Setting
    objective: Objective
    promises: tuple[Promise, ...]
    choices: dict[str, list[Scaler]]
    mode: str
    title: str
    description: str

    @property
    def work(self) -> int:
        """The number of runs, those of the calibration included."""
        tried = sum(len(candidates) for candidates in self.choices.values() if len(candidates) > 1)
        return len(self.choices) + (tried if self.calibration else 0)


@dataclass(frozen=True)
class Run:
    """The outcomes, and the settings of the scalers in words."""

    outcomes: tuple[Outcome, ...]
    settings: dict[str, str]


def priorities(spec: Spec) -> tuple[str, ...]:
    """The classes by which the engine orders its waiting requests; none where its policy is fcfs. Our own goes by them unless the spec
    says otherwise."""
    policy = spec.pods.engine.scheduling.policy or (PRIORITY if spec.pods.is_ours else "")
    by_class = policy == PRIORITY
    return tuple(one.name for one in spec.traffic.priorities) if by_class else ()


def holding(spec: Spec) -> tuple[float, int]:
    """For how many seconds gateways hold a request while no replica is ready, and how many requests they hold."""
    queue = spec.traffic.queue
    may_sleep = spec.scaling.idle_to_zero is not None or spec.scaling.external
    return hold_seconds(queue.timeout, may_sleep=may_sleep), queue.max_requests


def bounds_of(scaling: Scaling) -> Bounds:
    """The bounds of the spec, and what its cost ceiling leaves of them."""
    most = scaling.max if scaling.affordable is None else max(1, min(scaling.max, scaling.affordable))
    return Bounds(min(scaling.min, most), most, scaling.idle_to_zero is not None)


def plan(asked: Request) -> Plan:
    """Prepare the runs. Raises PlanError, ProfileError, TraceError."""
    _check(asked)
    profile = profiles.load(asked.profile)
    target = asked.scaling.target
    objective = Objective(asked.ttft or target.ttft or 2.0, asked.tpot or target.tpot or 0.1)
    trace, note = _trace(asked, profile)
    prompt, output = _means(trace)
    each = sustainable(profile, prompt, output)
    begin = sum(1 for arrival in trace.arrivals if arrival.at < 300) / min(300.0, trace.seconds)
    bounds = bounds_of(asked.scaling)
    initial = max(bounds.min, 1, min(bounds.max, math.ceil(begin / each / USED)))
    if asked.quota is not None:
        if asked.quota < profile.accelerators:
            raise PlanError(
                f"--quota: a replica of {profile.name} has {profile.accelerators} accelerators, more than {asked.quota}"
            )
        initial = min(initial, asked.quota // profile.accelerators)
    mode = asked.mode if asked.mode != "auto" else "fluid" if len(trace.arrivals) > MANY else "requests"
    setting = Setting(
        profile, bounds, initial, asked.quota, asked.seed, asked.hold, asked.held, priorities=asked.priorities
    )
    peak = _peak(trace)
    description = (
        f"{note}: {len(trace.arrivals)} requests in {trace.seconds / 3600:.1f} h, mean {prompt:.0f} prompt and "
        f"{output:.0f} output tokens, busiest 5 minutes {peak:.2f} requests/s\n"
        f"profile {profile.name} ({profile.source}): about {each:.2f} requests/s a replica at a full batch\n"
        f"SLO: first token within {objective.ttft:g} s, {objective.tpot * 1e3:.0f} ms per token after it; "
        f"{bounds.min} to {bounds.max} replicas of {profile.accelerators} accelerators{_capped(asked.scaling, bounds)}; mode {mode}"
        + (f"\nnot simulated: {', '.join(asked.left_out)}" if asked.left_out else "")
    )
    return Plan(
        trace=trace,
        calibration=_calibration(peak, prompt, output) if asked.calibrate else None,
        profile=profile,
        setting=setting,
        objective=objective,
        promises=asked.promises,
        choices={
            name: candidates_of(name, profile, asked.scaling, objective, (prompt, output)) for name in asked.scalers
        },
        mode=mode,
        title=f"{trace.name} on {profile.name}",
        description=description,
    )


def execute(made: Plan, progress: Callable[[str, float], None] = lambda what, done: None) -> Run:
    """Make the runs. `progress` gets the name of the present run and the number of finished runs."""
    outcomes, settings, done = [], {}, 0.0
    for name, candidates in made.choices.items():
        scaler = candidates[0] if made.calibration is None or len(candidates) == 1 else None
        if scaler is None and made.calibration is not None:
            count = done

            def tried(name: str = name) -> None:
                nonlocal count
                count += 1
                progress(f"calibrating {name}", count)

            scaler = calibrate(candidates, made.calibration, made.setting, made.objective, done=tried).scaler
            done += len(candidates)
        chosen = scaler or candidates[0]
        start = done
        outcomes.append(simulate(made, chosen, lambda share, s=start, n=name: progress(n, s + share)))  # type: ignore[misc]
        settings[name] = describe(chosen)
        done += 1
        progress(name, done)
    return Run(tuple(outcomes), settings)


def simulate(made: Plan, scaler: Scaler, progress: Callable[[float], None] | None = None) -> Outcome:
    if made.mode == "requests":
        return Simulation(made.setting, scaler, made.trace.arrivals, made.trace.seconds).run(progress)
    arrivals = made.trace.arrivals
    at, prompts, outputs = np.array([(one.at, one.prompt, one.output) for one in arrivals], dtype=float).T
    return FluidSimulation(made.setting, scaler, flow(at, prompts, outputs, made.trace.seconds)).run(progress)


def promises(run: Run, made: Plan) -> dict[str, tuple[Kept, ...]]:
    """How each scaler's fleet keeps the promises; empty in mode "fluid", which follows no single request."""
    return {one.scaler: kept(one.ends, made.promises) for one in run.outcomes if one.ends is not None and made.promises}


def as_json(run: Run, made: Plan, per_hour: float | None) -> dict[str, Any]:
    about = promises(run, made)
    return {
        "trace": {"name": made.trace.name, "seconds": made.trace.seconds, "requests": len(made.trace.arrivals)},
        "mode": made.mode,
        "objective": asdict(made.objective),
        "profile": asdict(made.profile),
        "bounds": asdict(made.setting.bounds),
        "seed": made.setting.seed,
        "scalers": [
            summary(outcome, made.objective, per_hour)
            | {"setting": run.settings[name], "timeline": timeline(outcome)}
            | {"promises": [as_numbers(one) for one in about.get(outcome.scaler, ())]}
            for name, outcome in zip(run.settings, run.outcomes, strict=True)
        ],
    }


def _capped(scaling: Scaling, bounds: Bounds) -> str:
    return "" if bounds.max == scaling.max else f" (spec.cost.ceilingPerHour allows {bounds.max})"


def left_out(spec: Spec) -> tuple[str, ...]:
    """What the manifest asks for and no simulation has."""
    scaling, traffic = spec.scaling, spec.traffic
    fields = {
        "spec.scaling.schedule": scaling.schedule,  # a trace has no time of day
        "spec.scaling.warmSpares": scaling.spares,
        "spec.scaling.mode external": scaling.external,
        "spec.engine.disaggregation": spec.pods.engine.disaggregation,
        "spec.traffic.circuitBreaker": traffic.max_requests_per_pod,
        "spec.traffic.peak": traffic.peak_output_tokens,
        "spec.traffic.rateLimits": traffic.rate_limits,
        "spec.cost.budget": spec.cost.budget,
        "spec.slo.atRisk": spec.slo.at_risk,
    }
    return tuple(name for name, given in fields.items() if given)


def _check(asked: Request) -> None:
    unknown = [name for name in asked.scalers if name not in NAMES]
    if unknown or not asked.scalers:
        raise PlanError(f"--scalers: {', '.join(unknown) or 'none'} is not among {', '.join(NAMES)}")
    if asked.mode not in ("auto", "requests", "fluid"):
        raise PlanError(f"--mode: must be auto, requests or fluid, not {asked.mode!r}")
    for option, value in (("--rate", asked.rate), ("--hours", asked.hours), ("--speed", asked.speed)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise PlanError(f"{option}: must be above 0, not {value}")
    if asked.hours is not None and asked.hours * 3600 > synthetic.LONGEST_SECONDS:
        raise PlanError(f"--hours: must be at most {synthetic.LONGEST_SECONDS / 3600:g}, a year, not {asked.hours:g}")
    for option, value in (("--slo-ttft", asked.ttft), ("--slo-tpot", asked.tpot)):
        if value is not None and not value > 0:
            raise PlanError(f"{option}: must be above 0 seconds, not {value}")
    if asked.quota is not None and asked.quota < 1:
        raise PlanError(f"--quota: must be at least 1 accelerator, not {asked.quota}")
    if asked.seed < 0:
        raise PlanError(f"--seed: must not be negative, not {asked.seed}")


def _trace(asked: Request, profile: Profile) -> tuple[Trace, str]:
    kind, _, name = asked.trace.partition(":")
    if kind == "builtin":
        if asked.model is not None or asked.speed != 1:
            raise PlanError("--model and --speed are for files; a built-in trace has neither")
        if name in workloads.WORKLOADS:
            if asked.rate is not None or asked.hours is not None:
                raise PlanError(f"--rate and --hours are for shapes; the workload {name} has numbers of its own")
            return workloads.build(name, asked.seed), f"workload {name}"
        if name not in synthetic.SHAPES:
            known = ", ".join((*synthetic.SHAPES, *workloads.WORKLOADS))
            raise PlanError(f"--trace: built-in traces are {known}, not {name!r}")
        lengths = synthetic.Lengths()
        peak = asked.rate or USED * asked.scaling.max * sustainable(profile, *lengths.means)
        if peak * 3600 * (asked.hours or synthetic.HOURS[name]) * 0.2 > 3e7:
            raise PlanError("--rate, --hours: more than some 30 million requests; take a shorter or a slower trace")
        return synthetic.build(name, peak, asked.seed, asked.hours, lengths), f"built-in trace {name}"
    if asked.rate is not None or asked.hours is not None:
        raise PlanError("--rate and --hours are for built-in traces; a file has its own (see --speed)")
    read = replay.read(Path(asked.trace), asked.model, asked.speed)
    skipped = f" ({read.skipped} without an answer left out)" if read.skipped else ""
    return read.trace, f"trace {asked.trace}{skipped}"


def _calibration(peak: float, prompt: float, output: float) -> Trace:
    """Bursts of another seed, as high as the busiest minutes of the trace, with lengths of the same means."""
    usual = synthetic.Lengths()
    across = usual.means
    lengths = synthetic.Lengths(prompt=usual.prompt * prompt / across[0], output=usual.output * output / across[1])
    return synthetic.build("calibration", peak, CALIBRATION_SEED, CALIBRATION_HOURS, lengths)


def _means(trace: Trace) -> tuple[float, float]:
    count = len(trace.arrivals)
    if not count:
        raise PlanError("--trace: no request in it")
    prompt = sum(arrival.prompt for arrival in trace.arrivals) / count
    return prompt, sum(arrival.output for arrival in trace.arrivals) / count


def _peak(trace: Trace) -> float:
    """Requests per second of the busiest five minutes."""
    window = min(300.0, trace.seconds)
    counts = np.bincount([int(arrival.at / window) for arrival in trace.arrivals])
    return float(counts.max()) / window
