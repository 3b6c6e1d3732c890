"""Invariants of any two consecutive statuses of an InferenceService (rows 13, 15, 16 of docs/reliability.md).

`between` checks two parsed statuses: the property tests call it after every decision, and `over` calls it for recordings
of a real API server. It returns one sentence for each violation. It does not know how the operator decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.status import Phase, Status

MAX_DECISIONS = 50
IN_USE = (Phase.STEP, Phase.PAUSED, Phase.PREVIEW, Phase.MIRRORING, Phase.LOAD_TEST, Phase.PROMOTING)


def over(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """List the violations over the recorded versions of one InferenceService's name, oldest first.

    A service that was deleted and created again is another service.
    """
    violations: list[str] = []
    for before, after in pairwise(documents):
        if before["metadata"].get("uid") != after["metadata"].get("uid"):
            continue
        old, new = (codec.load(document.get("status")) for document in (before, after))
        version = after["metadata"].get("resourceVersion")
        violations += [f"at {version}: {violation}" for violation in between(old, new)]
        if new.observed_generation > after["metadata"].get("generation", new.observed_generation):
            violations.append(f"at {version}: observedGeneration is ahead of the object")
    return violations


def between(old: Status, new: Status) -> list[str]:
    return [sentence for check in CHECKS for sentence in check(old, new)]


def _weights(status: Status) -> dict[str, int]:
    return {entry.revision: entry.weight for entry in status.traffic}


def _weights_sum(_: Status, new: Status) -> Iterator[str]:
    weights = _weights(new)
    if weights and sum(weights.values()) != 100:
        yield f"weights {weights} do not sum to 100"
    if any(not 0 <= weight <= 100 for weight in weights.values()):
        yield f"weights {weights} are not percentages"
    strangers = set(weights) - {new.stable, new.canary}
    if strangers:
        yield f"revisions {strangers} have weight and are neither stable nor canary"


def _no_traffic_without_pods(old: Status, new: Status) -> Iterator[str]:
    """A revision gets its first weight only with a ready pod, as the status itself counts them."""
    before, ready = _weights(old), {record.hash: record.ready for record in new.revisions}
    for revision, weight in _weights(new).items():
        if weight and not before.get(revision) and not ready.get(revision):
            yield f"revision {revision} gets {weight} % without a ready pod"


def _monotone(old: Status, new: Status) -> Iterator[str]:
    """A canary's weight falls only when it is rolled back or its steps were edited."""
    if new.canary and new.canary == old.canary and old.rollout.phase in IN_USE and new.rollout.phase in IN_USE:
        before, after = _weights(old).get(new.canary, 0), _weights(new).get(new.canary, 0)
        if after < before and new.observed_generation == old.observed_generation:
            yield f"the weight of canary {new.canary} fell from {before} to {after}"
    if new.rollout.phase is Phase.ROLLING_BACK and old.rollout.phase is Phase.ROLLING_BACK and new.canary == old.canary:
        before, after = _weights(old).get(new.canary, 0), _weights(new).get(new.canary, 0)
        if after > before:
            yield f"a rollback gave weight back to {new.canary}: {before} to {after}"


def _rejected_stay_rejected(old: Status, new: Status) -> Iterator[str]:
    names = [rejection.hash for rejection in new.rejected]
    if len(set(names)) != len(names):
        yield f"rejected twice: {names}"
    if new.canary in names and new.rollout.phase is not Phase.ROLLING_BACK:
        yield f"rejected revision {new.canary} is being rolled out"
    forgotten = {rejection.hash for rejection in old.rejected} - set(names)
    acted = new.action is not None and new.action != old.action and new.action.action in ("retry", "undo")
    if forgotten and not acted and len(names) < 10:
        yield f"rejections of {forgotten} were forgotten"


def _rolled_back_means_it(_: Status, new: Status) -> Iterator[str]:
    if new.rollout.phase is Phase.ROLLED_BACK and (_weights(new) != {new.stable: 100} or new.canary):
        yield f"rolled back, and the weights are {_weights(new)}"
    if new.rollout.phase in (Phase.ROLLED_BACK, Phase.ROLLING_BACK) and not new.rejected:
        yield "rolled back without a rejection that states the reason"


def _only_canaries_and_stored_revisions_become_stable(old: Status, new: Status) -> Iterator[str]:
    if not old.stable or not old.traffic or new.stable == old.stable:
        return
    if new.stable == old.canary:
        by_hand = (
            new.action is not None and new.action != old.action and new.action.action in ("promote", "skip", "resume")
        )
        failed = old.rollout.phase is Phase.ROLLING_BACK and new.decisions[-2:][0].kind == "RollbackFailed"
        if old.rollout.phase is not Phase.PROMOTING and not by_hand and not failed:
            yield f"{new.stable} was promoted from {old.rollout.phase}"
    elif not new.rejected or new.rollout.phase not in (Phase.ROLLED_BACK, Phase.ROLLING_BACK):
        yield f"{new.stable} became stable and is neither a canary nor the target of a rollback"


def _capacity_is_retained(old: Status, new: Status) -> Iterator[str]:
    """Check that the stable never shrinks beside a canary, and that a revision with weight has replicas."""
    desired = {record.hash: record.desired for record in new.revisions}
    earlier = {record.hash: record.desired for record in old.revisions}
    beside = new.canary and new.canary == old.canary and new.stable == old.stable
    same_spec = new.observed_generation == old.observed_generation
    if beside and same_spec and desired.get(new.stable, 0) < earlier.get(new.stable, 0):
        yield f"the stable shrank beside a canary: {earlier[new.stable]} to {desired.get(new.stable, 0)}"
    asleep = any(condition.type == "Ready" and condition.reason == "Idle" for condition in new.conditions)
    for revision, weight in _weights(new).items():
        if weight and not asleep and revision in desired and desired[revision] < 1:
            yield f"revision {revision} has {weight} % and is meant to have no replicas"


def _conditions(old: Status, new: Status) -> Iterator[str]:
    """lastTransitionTime moves if and only if the status does; every condition is about the observed generation."""
    previous = {condition.type: condition for condition in old.conditions}
    if len({condition.type for condition in new.conditions}) != len(new.conditions):
        yield "a condition comes twice"
    for condition in new.conditions:
        was = previous.get(condition.type)
        if condition.observed_generation != new.observed_generation:
            yield f"{condition.type} is about generation {condition.observed_generation}"
        if was is not None:
            moved = was.status != condition.status
            if not moved and abs(condition.last_transition_time - was.last_transition_time) > 1e-3:
                yield f"{condition.type}: lastTransitionTime moved, the status did not"
    if new.observed_generation < old.observed_generation:
        yield "observedGeneration went back"


def _bounded(_: Status, new: Status) -> Iterator[str]:
    if len(new.decisions) > MAX_DECISIONS:
        yield f"{len(new.decisions)} decisions are stored"


def _answered_once(old: Status, new: Status) -> Iterator[str]:
    if (
        old.action is not None
        and new.action is not None
        and old.action.id == new.action.id
        and old.action != new.action
    ):
        yield f"action {new.action.id} was answered twice"


CHECKS: tuple[Callable[[Status, Status], Iterator[str]], ...] = (
    _weights_sum,
    _no_traffic_without_pods,
    _monotone,
    _rejected_stay_rejected,
    _rolled_back_means_it,
    _only_canaries_and_stored_revisions_become_stable,
    _capacity_is_retained,
    _conditions,
    _bounded,
    _answered_once,
)
