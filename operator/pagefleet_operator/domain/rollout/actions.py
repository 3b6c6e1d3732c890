"""What a person asks for by the annotation pagefleet.io/action: done once for each id, or refused with a reason.

    {"id": "...", "action": "promote|pause|resume|abort|retry|undo|skip", "revision": "...", "by": "..."}

Nothing here touches the spec: an undone or aborted revision is remembered as rejected until the spec names another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pagefleet_contract.names import ACTION_ANNOTATION
from pagefleet_operator.domain.rollout import rollback, steps
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.stage import Stage, begin_phase, reading_of
from pagefleet_operator.domain.status.status import ActionRecord, Phase

ACTIONS = ("promote", "pause", "resume", "abort", "retry", "undo", "skip")
LONGEST_ID = 128


class RefusedError(Exception):
    """The action cannot be done now; the message says why and what can be."""


@dataclass(frozen=True)
class Request:
    id: str
    action: str
    revision: str
    by: str


@dataclass(frozen=True)
class Unreadable:
    """`id` is the annotation's own or, without one, made from its text, so that it is answered once."""

    id: str
    message: str


def parse(text: str) -> Request | Unreadable | None:
    """The annotation's value; None without one. Total."""
    if not text.strip():
        return None
    made = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return Unreadable(made, f"{ACTION_ANNOTATION} must be a JSON object")
    if not isinstance(raw, Mapping):
        return Unreadable(made, f"{ACTION_ANNOTATION} must be a JSON object")
    given = raw.get("id")
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST_ID:
        return Unreadable(made, f"id must be a text of 1 to {LONGEST_ID} characters")
    action = raw.get("action")
    if action not in ACTIONS:
        return Unreadable(given, f"action must be one of {', '.join(ACTIONS)}, not {str(action)[:40]!r}")
    revision, by = raw.get("revision", ""), raw.get("by", "")
    if not isinstance(revision, str) or not isinstance(by, str):
        return Unreadable(given, "revision and by must be texts")
    if revision and action != "undo":
        return Unreadable(given, "revision belongs to action undo")
    unknown = sorted(set(map(str, raw)) - {"id", "action", "revision", "by"})
    if unknown:
        return Unreadable(given, f"{unknown[0][:40]} is unknown; known here: id, action, revision, by")
    return Request(given, str(action), revision[:63], by[:128])


def act(stage: Stage, seen: Observation, rollout: Rollout, wanted: str, now: float, journal: Journal) -> Stage:
    """Do what is asked, once. `wanted` is the hash of the spec."""
    request = parse(seen.action)
    if request is None or (stage.action is not None and stage.action.id == request.id):
        return stage
    if isinstance(request, Unreadable):
        return replace(stage, action=_answer(request.id, "", "Refused", request.message, now))
    who = f" by {request.by}" if request.by else ""
    try:
        moved, message = _done(stage, seen, rollout, wanted, request, now, journal)
    except RefusedError as refusal:
        journal.note("ActionRefused", f"{request.action}{who}: {refusal}", warning=True)
        return replace(stage, action=_answer(request.id, request.action, "Refused", str(refusal), now))
    journal.note("ActionDone", f"{request.action}{who}: {message}")
    return replace(moved, action=_answer(request.id, request.action, "Done", message, now))


def without_spec(stage: Stage, seen: Observation, reason: str, now: float, journal: Journal) -> Stage:
    """While the spec cannot be read only an abort is done; everything else is refused with `reason`."""
    request = parse(seen.action)
    if request is None or (stage.action is not None and stage.action.id == request.id):
        return stage
    if isinstance(request, Request) and request.action == "abort" and _in_progress(stage):
        message = f"revision {stage.canary} is rolled back to {stage.stable}"
        moved = rollback.reject(stage, seen, "Aborted", f"aborted{_by(request)}", now, journal)
        return replace(moved, action=_answer(request.id, request.action, "Done", message, now))
    action = request.action if isinstance(request, Request) else ""
    return replace(stage, action=_answer(request.id, action, "Refused", f"the spec is invalid: {reason}"[:500], now))


def _in_progress(stage: Stage) -> bool:
    return bool(stage.canary) and stage.record.phase is not Phase.ROLLING_BACK


def _answer(name: str, action: str, outcome: str, message: str, now: float) -> ActionRecord:
    return ActionRecord(name, action, outcome, message, now)


def _done(
    stage: Stage, seen: Observation, rollout: Rollout, wanted: str, request: Request, now: float, journal: Journal
) -> tuple[Stage, str]:
    record = stage.record
    match request.action:
        case "retry":
            return _retry(stage, wanted)
        case "undo":
            return _undo(stage, seen, wanted, request.revision, now, journal)
        case "abort" if record.phase is Phase.WATCHING:
            return _undo(stage, seen, wanted, "", now, journal, reason="Aborted")
        case _ if record.phase is Phase.ROLLING_BACK:
            raise RefusedError(f"revision {stage.canary} is being rolled back already")
        case _ if not stage.canary or stage.canary != wanted:
            raise RefusedError("nothing is being rolled out")
        case "abort":
            moved = rollback.reject(stage, seen, "Aborted", f"aborted{_by(request)}", now, journal)
            return moved, f"revision {stage.canary} is rolled back to {stage.stable}"
        case "pause":
            if record.paused:
                raise RefusedError(f"the rollout is paused already ({record.paused})")
            return replace(stage, record=replace(record, paused=f"action {request.id}")), "the rollout is paused"
        case "resume":
            return _resume(stage, seen, rollout, now, journal)
        case _ if not reading_of(seen.revisions, stage.canary).ready:
            raise RefusedError(f"revision {stage.canary} has no ready replica yet")
        case "skip":
            if record.phase is Phase.PROMOTING:
                raise RefusedError("there is no step left to skip: the revision is being promoted")
            following = 0 if record.phase is Phase.STARTING else record.step + 1
            return steps.enter(stage, seen, rollout, following, now, journal), f"went on to step {following + 1}"
        case _:
            if record.phase is Phase.PROMOTING:
                raise RefusedError("the revision is being promoted already")
            why = f"revision {stage.canary} is promoted{_by(request)}"
            return steps.promoting(stage, rollout, why, now, journal), "the remaining steps are skipped"


def _by(request: Request) -> str:
    return f" by {request.by}" if request.by else " by a person"


def _resume(stage: Stage, seen: Observation, rollout: Rollout, now: float, journal: Journal) -> tuple[Stage, str]:
    record = stage.record
    if record.paused:
        return replace(
            stage, record=begin_phase(record, record.phase, now)
        ), "the rollout goes on; its step begins again"
    if record.phase not in steps.WAITING:
        raise RefusedError("the rollout is not paused")
    return steps.enter(stage, seen, rollout, record.step + 1, now, journal), "the pause is over"


def _retry(stage: Stage, wanted: str) -> tuple[Stage, str]:
    if stage.record.phase is Phase.ROLLING_BACK:
        raise RefusedError(f"revision {stage.canary} is still being rolled back")
    if wanted not in stage.rejected_hashes:
        raise RefusedError("the spec's revision has not been rejected")
    kept = tuple(one for one in stage.rejected if one.hash != wanted)
    return replace(stage, rejected=kept), f"revision {wanted} is tried again"


def _undo(
    stage: Stage, seen: Observation, wanted: str, asked: str, now: float, journal: Journal, reason: str = "Undone"
) -> tuple[Stage, str]:
    """Make a kept revision stable again; by default the last good one. The spec's own revision is then rejected."""
    kept = {record.hash: record for record in seen.status.revisions if record.spec}
    beside = stage.canary if stage.canary and stage.record.phase is not Phase.ROLLING_BACK else ""
    target = asked or (stage.stable if beside else _last_good(stage, kept, wanted))
    if not target:
        raise RefusedError("no earlier good revision is kept")
    if target not in kept:
        raise RefusedError(f"revision {target} is not kept; kept are {', '.join(sorted(kept))}")
    if target == wanted:
        raise RefusedError(f"revision {target} is what the spec asks for; use retry")
    if stage.record.phase is Phase.ROLLING_BACK and target == stage.stable:
        raise RefusedError(f"revision {target} is being made stable already")
    if beside and target != stage.stable:
        raise RefusedError(f"revision {beside} is being rolled out; abort that first")
    if not beside and target == stage.stable:
        raise RefusedError(f"revision {target} is stable already")
    bad = beside or (stage.canary if stage.record.phase is Phase.ROLLING_BACK else stage.stable)
    freed = replace(stage, rejected=tuple(one for one in stage.rejected if one.hash != target))
    message = f"revision {target} is made stable again instead of {bad}"
    moved = rollback.give_up(freed, seen, bad, target, reason, message, now, journal)
    if wanted not in moved.rejected_hashes and wanted != target:
        moved = rollback.remembered(moved, wanted, reason, message, now)
    return moved, message


def _last_good(stage: Stage, kept: Mapping[str, object], wanted: str) -> str:
    if (
        stage.previous is not None
        and stage.previous.revision in kept
        and stage.previous.revision not in stage.rejected_hashes
    ):
        return stage.previous.revision
    good = [name for name in kept if name not in stage.rejected_hashes and name not in (stage.stable, wanted)]
    return good[-1] if good else ""
