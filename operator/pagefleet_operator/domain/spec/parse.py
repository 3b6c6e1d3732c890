"""`.spec` as typed values: durations in seconds, percentages as fractions, defaults filled in.

`parse` is total: any JSON value gives a Spec or SpecErrors that name each field; nothing is silently ignored.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.revision_spec import RevisionSpec, revision_spec
from pagefleet_operator.domain.spec import beyond_cel, promises, support
from pagefleet_operator.domain.spec.capacity_plan import CapacityPlan, capacity_plan
from pagefleet_operator.domain.spec.rollout import Rollout, rollout, with_defaults
from pagefleet_operator.domain.spec.rules.check import check
from pagefleet_operator.domain.spec.scaling import Scaling, scaling
from pagefleet_operator.domain.spec.schema import structure
from pagefleet_operator.domain.spec.schema.cost import Cost, cost
from pagefleet_operator.domain.spec.schema.slo import SLO, slo
from pagefleet_operator.domain.spec.schema.spec import SPEC
from pagefleet_operator.domain.spec.schema.structure import SpecError
from pagefleet_operator.domain.spec.traffic import Traffic, traffic


@dataclass(frozen=True)
class SpecErrors:
    errors: tuple[SpecError, ...]

    @property
    def message(self) -> str:
        return "; ".join(f"{error.field}: {error.message}" for error in self.errors)


@dataclass(frozen=True)
class Spec:
    """`raw` has the defaults filled in; a revision's hash and snapshot are taken from it. `pods` is what affects pods."""

    raw: Mapping[str, Any]
    pods: RevisionSpec
    scaling: Scaling
    rollout: Rollout
    traffic: Traffic
    cost: Cost
    slo: SLO
    replica_cost: float | None = None  # of one replica for an hour
    capacity_plan: CapacityPlan | None = None


MAX_REMEMBERED = 4096


def parse(raw: object) -> Spec | SpecErrors:
    """The latest answers are remembered by the spec's JSON: a spec is decided on every few seconds and seldom edited."""
    try:
        text = json.dumps(raw)
    except (TypeError, ValueError, RecursionError):  # no JSON, so never from the API server
        return _parse(raw)
    return _remembered(text)


@functools.lru_cache(MAX_REMEMBERED)
def _remembered(text: str) -> Spec | SpecErrors:
    return _parse(json.loads(text))


def _parse(raw: object) -> Spec | SpecErrors:
    errors = structure.check(raw, SPEC, "spec")
    if errors or not isinstance(raw, Mapping):
        return SpecErrors(tuple(errors))
    given = {**raw, "rollout": with_defaults(raw.get("rollout", {}))}
    filled = structure.filled(copy.deepcopy(given), SPEC)
    errors = [*check(filled), *beyond_cel.errors(filled), *support.check(raw)]
    if errors:
        return SpecErrors(tuple(errors))
    pods, price, sized = revision_spec(filled), cost(filled.get("cost", {})), scaling(filled["scaling"])
    paid = price.affords(pods)
    affordable = None if paid is None else paid - sized.spares - pods.prefill_replicas
    promised = slo(filled.get("slo", {}))
    return Spec(
        raw=filled,
        pods=pods,
        scaling=promises.to_scaling(replace(sized, affordable=affordable), promised),
        rollout=promises.to_rollout(rollout(filled["rollout"], raw.get("rollout", {})), promised),
        traffic=traffic(filled["traffic"]),
        cost=price,
        slo=promised,
        replica_cost=price.of_replica(pods),
        capacity_plan=capacity_plan(filled.get("capacityPlan")),
    )
