"""The parts of the bench: which rollouts are played, how many, and what has to hold. Data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bench.rolloutbench.scenario import Regression, Scenario

UTILISATIONS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8)
# Of the parts that are no grid: every other one with two gateways.
SOME = ((0.1, 1), (0.3, 2), (0.5, 1), (0.8, 2))
HOUR = 3600.0
MAX_FALSE, MIN_FOUND = 0.01, 0.99


@dataclass(frozen=True)
class Target:
    """What has to hold for a cell; None: nothing.

    `requests` and `seconds` are bounds of the median, from the onset to the rollback. `within` is the number of canary
    requests within which MIN_FOUND of the rollouts have to be rolled back.
    """

    false: float | None = None  # share of rollouts that may be rolled back
    found: float | None = None  # share of rollouts that have to be rolled back
    within: int | None = None
    requests: int | None = None
    seconds: float | None = None
    promoted: float | None = None  # share of rollouts that may be promoted


@dataclass(frozen=True)
class Cell:
    """Rollouts of one scenario with different seeds. `quick`: how many with --quick, 0 leaves the cell out."""

    scenario: Scenario
    target: Target
    rollouts: int
    quick: int = 0

    @property
    def name(self) -> str:
        return self.scenario.name


GOOD = Target(false=MAX_FALSE)


def _name(part: str, utilisation: float, gateways: int, more: str = "") -> str:
    return f"{part}/u{utilisation:g}/g{gateways}{more}"


def _good(part: str, base: Scenario, grid: tuple[tuple[float, int], ...], quick: tuple[float, int]) -> Iterator[Cell]:
    for utilisation, gateways in grid:
        name = _name(part, utilisation, gateways)
        scenario = replace(base, name=name, utilisation=utilisation, gateways=gateways)
        yield Cell(scenario, GOOD, 2000, 1 if (utilisation, gateways) == quick else 0)


def _bad(part: str, regression: Regression, target: Target, limit: float = 1800.0) -> Iterator[Cell]:
    for utilisation, gateways in SOME:
        name = _name(part, utilisation, gateways)
        scenario = Scenario(name=name, utilisation=utilisation, gateways=gateways, regression=regression, limit=limit)
        yield Cell(scenario, target, 200, 1 if (utilisation, gateways) == SOME[1] else 0)


def _hold(weight: int, hours: float) -> tuple[Mapping[str, object], ...]:
    return ({"weight": weight, "hold": f"{hours:g}h"},)


def _late(regression: Regression, target: Target, part: str) -> Iterator[Cell]:
    """The same regression at later and later onsets, in a step that goes on."""
    for onset, rollouts, text in ((600, 200, "10m"), (3000, 100, "50m"), (6 * HOUR, 40, "6h"), (24 * HOUR, 20, "24h")):
        scenario = Scenario(
            name=f"{part}/{text}",
            regression=replace(regression, onset=float(onset)),
            limit=onset + 1800.0,
            steps=_hold(10, 48),
        )
        yield Cell(scenario, target, rollouts, 1 if onset == 600 else 0)


def _unstreamed() -> Iterator[Cell]:
    """Clients that do not stream: of answers, and of embeddings (without a token after the first)."""
    kinds = (("whole", 3.0), ("embeddings", 0.0))
    for (utilisation, gateways), (kind, seconds) in itertools.product(SOME[:3], kinds):
        base = Scenario(utilisation=utilisation, gateways=gateways, streams=False, answer_seconds=seconds)
        yield Cell(replace(base, name=_name(kind, utilisation, gateways)), GOOD, 2000, int(gateways == 2))
        bad = replace(base, name=_name(f"{kind}-x2", utilisation, gateways), limit=1800.0)
        yield Cell(replace(bad, regression=Regression(compute=2.0)), Target(found=MIN_FOUND), 200)


def _parts() -> Iterator[tuple[str, list[Cell]]]:
    grid = tuple((utilisation, gateways) for utilisation in UTILISATIONS for gateways in (1, 2))
    yield "identical", list(_good("identical", Scenario(), grid, (0.3, 1)))
    yield "cold", list(_good("cold", Scenario(cold_seconds=180.0), SOME, (0.3, 2)))
    yield "longprompts", list(_good("longprompts", Scenario(canary_prompts=4.0), SOME, (0.1, 1)))
    yield "waves", list(_good("waves", Scenario(waves=6.0), SOME, (0.3, 2)))
    yield "whole", list(_unstreamed())
    yield "errors3", list(_good("errors3", Scenario(errors=0.03), SOME, (0.3, 2)))
    scaled = Scenario(max_replicas=20)
    yield "autoscaled", list(_good("autoscaled", scaled, SOME, (0.8, 2)))
    found = Target(found=MIN_FOUND)
    fast = replace(found, requests=8, seconds=20.0)
    yield "x100", list(_bad("x100", Regression(compute=100.0), fast))
    yield "hang", list(_bad("hang", Regression(hangs=True), fast))
    yield "x3", list(_bad("x3", Regression(compute=3.0), replace(found, requests=40)))
    yield "x2", list(_bad("x2", Regression(compute=2.0), replace(found, requests=120)))
    yield "late", list(_late(Regression(compute=2.0), replace(found, requests=180), "late"))
    yield "x1.5", list(_bad("x1.5", Regression(compute=1.5), replace(found, requests=600)))
    small, never = Regression(compute=1.25), Target(promoted=0.0)
    long = Scenario(name="x1.25/72h", regression=small, limit=72 * HOUR, steps=_hold(5, 96))
    yield "x1.25", [*_bad("x1.25", small, never), Cell(long, replace(found, promoted=0.0), 100)]
    tail = Regression(tail_share=0.08, tail_factor=3.0)
    yield "tail", list(_bad("tail", tail, Target(within=3000), limit=3300.0))  # at 10 % a request a second
    failing = Regression(errors=0.05)
    errors = replace(found, requests=150)
    yield "errors5", [*_bad("errors5", failing, errors), *_late(failing, errors, "errors5/late")]
    slow = Scenario(
        name="slow-traffic", rate=5 / 60, utilisation=None, history=2 * HOUR, limit=2 * HOUR,
        regression=Regression(compute=100.0),
    )  # fmt: skip
    yield "slow-traffic", [Cell(slow, replace(found, requests=8), 200, 2)]
    leak = Scenario(name="leak", regression=Regression(leak=0.3), limit=6 * HOUR, steps=_hold(10, 12))
    yield "leak", [Cell(leak, replace(found, promoted=0.0), 40)]


PARTS: Mapping[str, list[Cell]] = dict(_parts())


def cells(names: list[str]) -> list[Cell]:
    """Return the cells of the parts, or those with the names. Raises KeyError for an unknown name."""
    everything = {cell.name: cell for own in PARTS.values() for cell in own}
    chosen: list[Cell] = []
    for name in names or list(PARTS):
        own = PARTS.get(name) or [cell for key, cell in everything.items() if key == name or key.startswith(f"{name}/")]
        if not own:
            raise KeyError(name)
        chosen += own
    return chosen
