"""The kinds of rollout steps: one table, read by the schema, the rules, the typed values, the rollout and the pages for people.

A new kind is a member of `StepKind` and a row of `STEP_KINDS` here, its phase in domain/status/status.py, and its behaviour
in domain/rollout/steps.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pagefleet_contract.endpoints import ENDPOINTS
from pagefleet_contract.quantity import fraction, seconds
from pagefleet_operator.domain.spec.schema.fields import Schema, array, choice, duration, integer, number, record, share

LOAD_TEST_SECONDS = 1800.0
UNTIL_RESUMED = "until resumed"

TOKENS = record(
    "How long they are, log-normally.",
    {
        "median": integer("The median of the tokens of a request.", 1, 100000),
        "sigma": number("Standard deviation of the logarithm.", 0, 3),
        "max": integer("The most tokens of a request.", 1, 100000),
    },
)

LOAD_TEST = record(
    "A synthetic load before users' requests reach the canary; its result is compared with the stable revision's own.",
    {
        "requests": integer("How many requests the test sends.", 1, 100000),
        "rate": number("Requests per second, as they would come by themselves.", 0.01, 10000),
        "promptTokens": TOKENS,
        "outputTokens": TOKENS,
        "temperature": number("The temperature of sampling; the engine's default when omitted.", 0, 2),
        "seed": integer("The same seed gives the same requests.", 0, 2147483647),
        "endpoints": array(
            "Endpoints that must work before the load begins: each gets a small request, and a streamed one where it can stream.",
            choice("The path of an endpoint.", tuple(ENDPOINTS)),
            len(ENDPOINTS),
        ),
        "timeout": duration("Longest time for all of it (30m when omitted)."),
    },
)

# Fields beside the one that names a step's kind.
OPTIONS: Mapping[str, Schema] = {
    "hold": duration("How long a weight or a mirror is held at least."),
    "minRequests": integer("Canary requests that a weight step must have seen before the next.", 1, 100000000),
}


class StepKind(StrEnum):
    """Named as the fields of a step."""

    WEIGHT = "weight"
    PAUSE = "pause"
    PREVIEW = "preview"
    MIRROR = "mirror"
    LOAD_TEST = "loadTest"


@dataclass(frozen=True)
class RolloutStep:
    """`weight` is None except in weight steps: the weight before stays. `hold` is the shortest time of the step in seconds, None
    for a pause or preview that waits to be resumed; for a load test it is the longest time it may take."""

    weight: int | None
    hold: float | None
    kind: StepKind = StepKind.WEIGHT
    min_requests: int = 0
    mirror: float = 0.0  # percent
    profile: Mapping[str, Any] = field(default_factory=dict)  # of the load test


Raw = Mapping[str, Any]


@dataclass(frozen=True)
class StepDefinition:
    """One kind of step: `schema` is the structure of its field, `options` the other fields of a step that go with it.

    `phase` is the rollout's phase meanwhile (domain/status/status.py). `waits`: a person may resume it. `hold_is_limit`: the
    step ends by itself, at the latest after its hold. `needs` is a condition of the rollout (in CEL) for steps of this kind,
    and its message. For people: `decision` follows "revision X" and has the canary's weight,
    `headline` is the status page's with {canary}, {weight} and {step}, `text` is the command line's.
    """

    kind: StepKind
    schema: Schema
    read: Callable[[Raw], RolloutStep]
    phase: str
    decision: Callable[[RolloutStep, int], str]
    headline: str
    text: Callable[[Raw], str]
    options: tuple[str, ...] = ()
    needs: tuple[str, str] | None = None
    waits: bool = False
    hold_is_limit: bool = False


def _weight(raw: Raw) -> RolloutStep:
    return RolloutStep(raw["weight"], seconds(raw.get("hold", "0s")), min_requests=raw.get("minRequests", 0))


def _weight_text(raw: Raw) -> str:
    limits = [f"hold {raw['hold']}"] if raw.get("hold") else []
    limits += [f"{raw['minRequests']} requests"] if raw.get("minRequests") else []
    return f"{raw['weight']} %" + (f" ({', '.join(limits)})" if limits else "")


def _waiting(kind: StepKind) -> Callable[[Raw], RolloutStep]:
    def read(raw: Raw) -> RolloutStep:
        wait = raw[kind.value].get("duration")
        return RolloutStep(None, seconds(wait) if wait else None, kind)

    return read


def _waiting_text(kind: StepKind) -> Callable[[Raw], str]:
    return lambda raw: f"{kind.value} {(raw[kind.value] or {}).get('duration') or UNTIL_RESUMED}"


def _wait(step: RolloutStep) -> str:
    return "until it is resumed" if step.hold is None else f"for {step.hold:g} s"


def _mirror(raw: Raw) -> RolloutStep:
    hold = seconds(raw.get("hold", "0s"))
    return RolloutStep(None, hold, StepKind.MIRROR, mirror=100 * fraction(raw["mirror"]))


def _load_test(raw: Raw) -> RolloutStep:
    profile = {name: value for name, value in raw["loadTest"].items() if name != "timeout"}
    longest = raw["loadTest"].get("timeout")
    limit = seconds(longest) if longest else LOAD_TEST_SECONDS
    return RolloutStep(None, limit, StepKind.LOAD_TEST, profile=profile)


STEP_KINDS: Mapping[StepKind, StepDefinition] = {
    row.kind: row
    for row in (
        StepDefinition(
            StepKind.WEIGHT,
            integer("Percent of requests for the canary.", 1, 100),
            _weight,
            phase="Step",
            decision=lambda step, weight: f"gets {weight} % of requests",
            headline="Canary {canary} gets {weight} % of requests{step}.",
            text=_weight_text,
            options=("hold", "minRequests"),
        ),
        StepDefinition(
            StepKind.PAUSE,
            record("Wait at the weight before.", {"duration": duration("How long; until resumed when omitted.")}),
            _waiting(StepKind.PAUSE),
            phase="Paused",
            decision=lambda step, weight: f"is paused {_wait(step)} at {weight} %",
            headline="The rollout of {canary} waits at {weight} %{step} to be resumed.",
            text=_waiting_text(StepKind.PAUSE),
            waits=True,
        ),
        StepDefinition(
            StepKind.PREVIEW,
            record(
                "Only requests with rollout.route.header are routed to the canary.",
                {"duration": duration("How long; until resumed when omitted.")},
            ),
            _waiting(StepKind.PREVIEW),
            phase="Preview",
            decision=lambda step, weight: f"gets only requests with the header of spec.rollout.route, {_wait(step)}",
            headline="Canary {canary} answers only requests with the preview header{step}.",
            text=_waiting_text(StepKind.PREVIEW),
            needs=(
                "has(self.route) && has(self.route.header) && self.route.header.size() > 0",
                "spec.rollout.route.header: nothing else reaches a canary without weight",
            ),
            waits=True,
        ),
        StepDefinition(
            StepKind.MIRROR,
            share("Share of requests copied to the canary, whose answers are thrown away."),
            _mirror,
            phase="Mirroring",
            decision=lambda step, weight: f"gets copies of {step.mirror:g} % of requests",
            headline="Canary {canary} gets copies of requests{step}.",
            text=lambda raw: f"mirror {raw['mirror']}",
            options=("hold",),
        ),
        StepDefinition(
            StepKind.LOAD_TEST,
            LOAD_TEST,
            _load_test,
            phase="LoadTest",
            decision=lambda step, weight: "is put under a synthetic load",
            headline="Canary {canary} is under a synthetic load{step}.",
            text=lambda raw: "load test",
            hold_is_limit=True,
        ),
    )
}
KIND_NAMES = ", ".join(STEP_KINDS)

STEP = record(
    f"One step: exactly one of {KIND_NAMES}.",
    {**{kind.value: row.schema for kind, row in STEP_KINDS.items()}, **OPTIONS},
)


def definition_of(raw: Raw) -> StepDefinition | None:
    """The kind of a step of the spec; None for a kind that this version does not know."""
    return next((row for kind, row in STEP_KINDS.items() if kind.value in raw), None)


def read(raw: Raw) -> RolloutStep:
    """The typed value of a step that the schema and the rules accept. Raises ValueError for one without a kind."""
    row = definition_of(raw)
    if row is None:
        raise ValueError(f"a step needs one of {KIND_NAMES}")
    return row.read(raw)
