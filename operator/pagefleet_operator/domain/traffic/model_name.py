"""Decides which of several services with the same `spec.model.servedName` owns that name. Pure.

The one that has it keeps it. A free name goes to the oldest service. One that came later has a condition, and gets no
requests to `/v1/...` with that model. It does not inherit the name either when the owner goes: the owner's clients would send
it prompts that were never meant for it. A person claims the name for it by an annotation.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_contract import model_name
from pagefleet_operator.domain.status.condition import FALSE, NewCondition
from pagefleet_operator.domain.status.model_names import NameReading
from pagefleet_operator.domain.status.status import Condition

KIND = model_name.CONDITION


@dataclass(frozen=True)
class Claim:
    """The name that is granted, "" for none, and the condition of a service that lost it."""

    granted: str
    condition: NewCondition | None = None


def decide(
    key: tuple[str, str], served_name: str, granted: str, before: Condition | None, reading: NameReading
) -> Claim:
    """Decide for the service `key`. `granted` is the name that it has now, `before` its condition."""
    if not served_name:
        return Claim("")
    own = (reading.created, *key)
    owners = [rival for rival in reading.rivals if rival.owns]
    field = f"spec.model.servedName {served_name!r}: "
    lost = before is not None and before.status == FALSE and before.message.startswith(field)
    if granted == served_name:
        # Two owners are possible after a restored backup only.
        taken = [rival for rival in owners if (rival.created, rival.namespace, rival.name) < own]
    elif owners:
        taken = owners
    elif lost and before is not None and reading.claims != served_name:
        return Claim("", (KIND, FALSE, _released(before.reason), field + _released_message(key, served_name)))
    elif lost:
        taken = []
    else:
        waiting = [rival for rival in reading.rivals if not rival.lost]
        taken = [rival for rival in waiting if (rival.created, rival.namespace, rival.name) < own]
    if not taken:
        return Claim(served_name)
    here = next((rival for rival in taken if rival.namespace == key[0]), None)
    owner = f"InferenceService {here.namespace}/{here.name}" if here else "an InferenceService of another namespace"
    message = (
        f"{owner} has this name already, so requests to /v1/... with this model do not come here; clients use "
        f"/{key[0]}/{key[1]}/v1/..., or choose another name"
    )
    return Claim("", (KIND, FALSE, model_name.TAKEN + ("" if here else model_name.ELSEWHERE), field + message))


def _released(reason: str) -> str:
    return model_name.RELEASED + (model_name.ELSEWHERE if reason.endswith(model_name.ELSEWHERE) else "")


def _released_message(key: tuple[str, str], served_name: str) -> str:
    return (
        f"the service that had this name is gone; its clients' prompts come here only after "
        f"`kubectl annotate inferenceservice -n {key[0]} {key[1]} {model_name.CLAIM_ANNOTATION}={served_name}`"
    )
