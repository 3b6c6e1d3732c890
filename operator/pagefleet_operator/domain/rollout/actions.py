"""Carries out a person's action from the annotation pagefleet.io/action: once for each id, or refuses it with a reason.

    {"id": "...", "action": "promote|pause|resume|abort|retry|undo|skip", "revision": "...", "by": "..."}

Nothing here changes the spec: an undone or aborted revision is remembered as rejected until the spec names another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pagefleet_contract.names import ACTION_ANNOTATION
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.rollout import promotion, rollback, steps
from pagefleet_operator.domain.status.codec import time_to_the_second
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.stage import Stage, begin_phase, stage_of
from pagefleet_operator.domain.status.status import ActionRecord, Phase, PreviousRecord, Rejection
from pagefleet_operator.domain.status.turn import SpecTurn, Turn

ACTIONS = ("promote", "pause", "resume", "abort", "retry", "undo", "skip")
MAX_ID_LENGTH = 128


class RefusedError(Exception):
    """The action cannot be done now; the message states the reason and what can be done instead."""


@dataclass(frozen=True)
class Request:
    """A person's action. `by` is the person's name, "" when it is not stated."""

    id: str
    action: str
    revision: str
    by: str

    @property
    def person(self) -> str:
        """The adverb of a sentence about this action."""
        return f" by {self.by}" if self.by else " by a person"


@dataclass(frozen=True)
class Unreadable:
    """An annotation that is no action. `id` is its own or, without one, made from its text: it is answered once."""

    id: str
    message: str


def parse(text: str) -> Request | Unreadable | None:
    """Parse the annotation's value; None without one. Total."""
    if not text.strip():
        return None
    text_id = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return Unreadable(text_id, f"{ACTION_ANNOTATION} must be a JSON object")
    if not isinstance(raw, Mapping):
        return Unreadable(text_id, f"{ACTION_ANNOTATION} must be a JSON object")
    own_id = raw.get("id")
    if not isinstance(own_id, str) or not 0 < len(own_id) <= MAX_ID_LENGTH:
        return Unreadable(text_id, f"id must be a text of 1 to {MAX_ID_LENGTH} characters")
    action = raw.get("action")
    if action not in ACTIONS:
        return Unreadable(own_id, f"action must be one of {', '.join(ACTIONS)}, not {str(action)[:40]!r}")
    revision, by = raw.get("revision", ""), raw.get("by", "")
    if not isinstance(revision, str) or not isinstance(by, str):
        return Unreadable(own_id, "revision and by must be texts")
    if revision and action != "undo":
        return Unreadable(own_id, "revision belongs to action undo")
    unknown = sorted(set(map(str, raw)) - {"id", "action", "revision", "by"})
    if unknown:
        return Unreadable(own_id, f"{unknown[0][:40]} is unknown; known here: id, action, revision, by")
    return Request(own_id, str(action), revision[:63], by[:128])


def act(turn: SpecTurn, stage: Stage) -> Stage:
    """Do what a person asks for, once."""
    request = _new_request(turn, stage)
    if request is None:
        return stage
    if isinstance(request, Unreadable):
        return replace(stage, action=_record(turn, request, "Refused", request.message))
    by = request.person if request.by else ""
    try:
        moved, message = _perform(turn, stage, request)
    except RefusedError as refusal:
        turn.journal.note("ActionRefused", f"{request.action}{by}: {refusal}", warning=True)
        return replace(stage, action=_record(turn, request, "Refused", str(refusal)))
    turn.journal.note("ActionDone", f"{request.action}{by}: {message}")
    return replace(moved, action=_record(turn, request, "Done", message))


def act_without_spec(turn: Turn, stage: Stage, error: str) -> Stage:
    """While the spec cannot be used only an abort is done; every other action is refused with `error`."""
    request = _new_request(turn, stage)
    if request is None:
        return stage
    in_progress = bool(stage.canary) and stage.record.phase is not Phase.ROLLING_BACK
    previous = promotion.way_back(turn, stage) if stage.record.phase is Phase.WATCHING else None
    if isinstance(request, Request) and request.action == "abort" and (in_progress or previous is not None):
        moved, message = _abort(turn, stage, request, previous)
        return replace(moved, action=_record(turn, request, "Done", message))
    return replace(stage, action=_record(turn, request, "Refused", f"the spec is invalid: {error}"[:500]))


def answered_before(observation: Observation, now: float) -> Observation:
    """The observation of a service that is restored from its records: an annotation that came with it was answered earlier, and
    no record has the answer."""
    request = parse(observation.action)
    if request is None:
        return observation
    action = request.action if isinstance(request, Request) else ""
    message = "it came with the service that was restored; annotate the service again, with another id"
    answer = ActionRecord(request.id, action, "Refused", message, now)
    return replace(observation, status=replace(observation.status, action=answer))


def asks_to_retry(turn: Turn) -> bool:
    """Whether a person asks now to try the spec's revision again."""
    request = _new_request(turn, stage_of(turn.observation.status))
    return isinstance(request, Request) and request.action == "retry"


def _new_request(turn: Turn, stage: Stage) -> Request | Unreadable | None:
    """The annotation's request; None when there is none, or when it was answered before."""
    request = parse(turn.observation.action)
    if request is None or (stage.action is not None and stage.action.id == request.id):
        return None
    return request


def _record(turn: Turn, request: Request | Unreadable, outcome: str, message: str) -> ActionRecord:
    action = request.action if isinstance(request, Request) else ""
    return ActionRecord(request.id, action, outcome, message, turn.now)


def _perform(turn: SpecTurn, stage: Stage, request: Request) -> tuple[Stage, str]:
    """The stage after the action, and a sentence about it."""
    phase = stage.record.phase
    if request.action == "retry":
        return _retry(turn, stage)
    if request.action == "undo":
        return _undo(turn, stage, request.revision, "Undone")
    if request.action == "abort" and phase is Phase.WATCHING:
        return _undo(turn, stage, "", "Aborted")
    if phase is Phase.ROLLING_BACK:
        raise RefusedError(f"revision {stage.canary} is being rolled back to {stage.stable} already")
    if not stage.canary or stage.canary != turn.target:
        raise RefusedError(f"nothing is being rolled out: revision {stage.stable} gets all traffic")
    return ON_CANARY[request.action](turn, stage, request)


def _abort(turn: Turn, stage: Stage, request: Request, previous: PreviousRecord | None = None) -> tuple[Stage, str]:
    """Give up the canary or, with `previous`, the promoted revision that is watched."""
    bad, good = (stage.canary, stage.stable) if previous is None else (stage.stable, previous.revision)
    moved = rollback.give_up(turn, stage, bad, good, "Aborted", f"aborted{request.person}")
    return moved, f"revision {bad} is rolled back to {good}"


def _pause(turn: SpecTurn, stage: Stage, request: Request) -> tuple[Stage, str]:
    record = stage.record
    if record.paused:
        origin, command = _origin_of_pause(turn, record.paused), turn.command("resume")
        raise RefusedError(f"the rollout is paused already ({origin}); resume it with `{command}`")
    return replace(stage, record=replace(record, paused=f"action {request.id}")), "the rollout is paused"


def _resume(turn: SpecTurn, stage: Stage, _: Request) -> tuple[Stage, str]:
    record = stage.record
    if record.paused:
        begun = begin_phase(record, record.phase, turn.now)
        if not record.paused.startswith("alert "):
            return replace(stage, record=begun), "the rollout goes on; its step begins again"
        # Alertmanager never sends the end of an alert that was silenced. One that begins later pauses again.
        message = f"the rollout goes on; its step begins again, and {record.paused} counts no more"
        return replace(stage, record=replace(begun, started=turn.now)), message
    if record.phase not in steps.WAITING:
        raise RefusedError(f"the rollout is not paused: its phase is {record.phase.value}")
    return steps.enter(turn, stage, record.step + 1), "the pause is over"


def _skip(turn: SpecTurn, stage: Stage, _: Request) -> tuple[Stage, str]:
    _require_ready_canary(turn, stage)
    if stage.record.phase is Phase.PROMOTING:
        raise RefusedError(f"there is no step left to skip: revision {stage.canary} is being promoted")
    following = 0 if stage.record.phase is Phase.STARTING else stage.record.step + 1
    return steps.enter(turn, stage, following), f"went on to step {following + 1}"


def _promote(turn: SpecTurn, stage: Stage, request: Request) -> tuple[Stage, str]:
    _require_ready_canary(turn, stage)
    if stage.record.phase is Phase.PROMOTING:
        raise RefusedError(f"revision {stage.canary} is being promoted already")
    cause = f"revision {stage.canary} is promoted{request.person}"
    return steps.begin_promotion(turn, stage, cause), "the remaining steps are skipped"


# The actions on a rollout under way.
ON_CANARY: Mapping[str, Callable[[SpecTurn, Stage, Request], tuple[Stage, str]]] = {
    "abort": _abort,
    "pause": _pause,
    "resume": _resume,
    "skip": _skip,
    "promote": _promote,
}


def _require_ready_canary(turn: SpecTurn, stage: Stage) -> None:
    canary = turn.reading(stage.canary)
    if not canary.ready:
        pods = f"0 of {len(canary.pods)} pods" if canary.pods else "no pod yet"
        raise RefusedError(f"revision {stage.canary} has no ready replica yet ({pods})")


def _origin_of_pause(turn: Turn, paused: str) -> str:
    """Who or what paused the rollout, and when, as far as the decision log still has it."""
    by_alert = paused.startswith("alert ")
    kind, beginning = ("AlertPaused", f"{paused} ") if by_alert else ("ActionDone", "pause")
    decisions = reversed(turn.observation.status.decisions)
    entry = next((one for one in decisions if one.kind == kind and one.message.startswith(beginning)), None)
    if entry is None:
        return paused
    person = "" if by_alert else entry.message.partition(":")[0].removeprefix("pause")
    return f"{paused}{person}, since {time_to_the_second(entry.time)}"


def _retry(turn: SpecTurn, stage: Stage) -> tuple[Stage, str]:
    if stage.record.phase is Phase.ROLLING_BACK:
        raise RefusedError(f"revision {stage.canary} is still being rolled back to {stage.stable}")
    if turn.target not in stage.rejected_hashes:
        raise RefusedError(f"the spec's revision {turn.target} has not been rejected")
    remaining = tuple(one for one in stage.rejected if one.hash != turn.target)
    return replace(stage, rejected=remaining), f"revision {turn.target} is tried again"


def _undo(turn: SpecTurn, stage: Stage, revision: str, reason: str) -> tuple[Stage, str]:
    """Make a stored revision stable again, by default the last good one, and reject the spec's own revision."""
    stored = tuple(dict.fromkeys(record.hash for record in turn.observation.status.revisions if record.spec))
    rolling_back = stage.record.phase is Phase.ROLLING_BACK
    canary = "" if rolling_back else stage.canary
    good = revision or (stage.stable if canary else _last_good(stage, stored, turn.target))
    _require_undoable(turn, stage, good, stored)
    bad = canary or (stage.canary if rolling_back else stage.stable)
    forgiven = replace(stage, rejected=tuple(one for one in stage.rejected if one.hash != good))
    message = f"revision {good} is made stable again instead of {bad}"
    moved = rollback.give_up(turn, forgiven, bad, good, reason, message)
    if turn.target not in moved.rejected_hashes:
        moved = rollback.remember_rejection(moved, Rejection(turn.target, reason, message, turn.now))
    return moved, message


def _require_undoable(turn: SpecTurn, stage: Stage, good: str, stored: tuple[str, ...]) -> None:
    """Refuse an undo to `good` that cannot be done, or that another action does."""
    rolling_back = stage.record.phase is Phase.ROLLING_BACK
    canary = "" if rolling_back else stage.canary
    if not good:
        raise RefusedError("no earlier good revision is stored (spec.rollout.historyLimit)")
    if good not in stored:
        raise RefusedError(f"revision {good} is not stored; stored are {', '.join(sorted(stored))}")
    if good == turn.target:
        raise RefusedError(f"revision {good} is what the spec asks for; use `{turn.command('retry')}`")
    if rolling_back and good == stage.canary:
        raise RefusedError(f"revision {good} is being rolled back to {stage.stable}")
    if rolling_back and good == stage.stable:
        raise RefusedError(f"revision {good} is being made stable already")
    if canary and good != stage.stable:
        raise RefusedError(f"revision {canary} is being rolled out; abort that first with `{turn.command('abort')}`")
    if not canary and good == stage.stable:
        raise RefusedError(f"revision {good} is stable already")


def _last_good(stage: Stage, stored: tuple[str, ...], target: str) -> str:
    """The revision that served before the stable or, without one, the latest stored one that was never rejected."""
    rejected = stage.rejected_hashes
    if stage.previous is not None and stage.previous.revision in stored and stage.previous.revision not in rejected:
        return stage.previous.revision
    good = [name for name in stored if name not in rejected and name not in (stage.stable, target)]
    return good[-1] if good else ""
