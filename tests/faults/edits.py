"""Row 7: a user edits the service at the very moment at which a write of the operator fails. The user's edits must still
be there at every reading of the story. The operator must never have written the spec. All other state must be as in a
story without faults and edits.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from faults.proxy import Call, Fault
from faults.story import GROUP, NAME, RETRIES, Story

from pagefleet_operator.kube.client import ApiError

KEY = f"InferenceService/{NAME}"
PREFIX = "example.com/edit-"
Document = dict[str, Any]


@dataclass(frozen=True)
class Edit:
    """One edit, made in `chapter`; `number`, from 1, is in the label, the annotation and spec.traffic.retries."""

    number: int
    chapter: str


@dataclass
class Edits:
    """A script: at each of the operator's writes `numbers` a label, an annotation and a field of the spec that is no part
    of a revision are changed, and then `fault` strikes."""

    numbers: tuple[int, ...]
    fault: Fault
    made: list[Edit] = field(default_factory=list)
    _story: Story | None = None
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)  # at a time: the last edit is the one that counts

    def begun(self, story: Story) -> None:
        self._story = story

    def __call__(self, call: Call) -> Fault | None:
        return replace(self.fault, wait=self._edit) if call.write in self.numbers else None

    async def _edit(self) -> None:
        if self._story is None:
            raise RuntimeError("the story has not begun")
        async with self._one:
            edit = Edit(len(self.made) + 1, self._story.chapter)
            name, value = f"{PREFIX}{edit.number}", str(edit.number)
            change = {
                "metadata": {"labels": {name: value}, "annotations": {name: value}},
                "spec": {"traffic": {"retries": RETRIES + edit.number}},
            }
            path = f"{GROUP}/namespaces/{self._story.namespace}/inferenceservices/{NAME}"
            try:
                await self._story.api.merge(path, change)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:  # 404: the service is deleted, there is nothing to edit
                self.made.append(edit)

    def without(self, states: Mapping[str, Mapping[str, Document]]) -> tuple[dict[str, dict[str, Document]], list[str]]:
        """Return the states without the edits, and the edits that were lost."""
        remaining, lost = {}, []
        chapters = list(states)
        for chapter, state in states.items():
            due = [edit for edit in self.made if chapters.index(edit.chapter) <= chapters.index(chapter)]
            remaining[chapter] = dict(state)
            if due and KEY in state:
                service = copy.deepcopy(state[KEY])
                lost += [f"{chapter}: {what}" for what in _taken_out(service, due)]
                remaining[chapter][KEY] = service
        return remaining, lost


def _taken_out(service: Document, due: list[Edit]) -> list[str]:
    """Take the edits out of a document, and return those that were not in it."""
    lost = []
    for where in ("labels", "annotations"):
        held = service["metadata"].get(where) or {}
        for edit in due:
            if held.pop(f"{PREFIX}{edit.number}", None) != str(edit.number):
                lost.append(f"the user's metadata.{where}[{PREFIX}{edit.number}] is lost")
        if not held:
            service["metadata"].pop(where, None)
    traffic, written = service["spec"]["traffic"], RETRIES + due[-1].number
    if traffic["retries"] != written:
        lost.append(f"spec.traffic.retries is {traffic['retries']}, the user wrote {written}")
    traffic["retries"] = RETRIES
    _renumbered(service, len(due))
    return lost


def _renumbered(value: Any, edits: int) -> None:
    """Subtract the edits of the spec from every generation: a write of the spec by the operator would be one more."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("generation", "observedGeneration") and isinstance(item, int):
                value[key] = item - edits
            else:
                _renumbered(item, edits)
    elif isinstance(value, list):
        for item in value:
            _renumbered(item, edits)
