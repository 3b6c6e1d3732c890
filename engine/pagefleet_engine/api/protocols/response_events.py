"""The document and the events of one response. Pure.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pagefleet_engine.api.answers.shapes import Usage
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.parsing.deltas import Delta
from pagefleet_engine.api.protocols.writing import Json, new_id

INCOMPLETE = {"length": "max_output_tokens"}


class ResponseWriter:
    """`echoed`: the request's fields that the document repeats."""

    def __init__(self, id: str, echoed: Mapping[str, Any]) -> None:
        self._number = 0
        self._document: Json = {
            "id": id, "object": "response", "created_at": int(time.time()), "status": "in_progress", "error": None,
            "incomplete_details": None, "output": [], "usage": None, **echoed,
        }  # fmt: skip
        self._output: list[Json] = self._document["output"]
        self._open: Json | None = None  # the item that is being written

    @property
    def document(self) -> Json:
        return self._document

    def begin(self, usage: Usage) -> list[Json]:
        now = {**self._document, "output": []}
        return [self._event("response.created", response=now), self._event("response.in_progress", response=now)]

    def take(self, delta: Delta, logprobs: Sequence[Mapping[str, Any]] = ()) -> list[Json]:
        if delta.index is not None:
            return self._call(delta)
        if delta.reasoning:
            return self._text("reasoning", delta.reasoning)
        return self._text("message", delta.content, logprobs) if delta.content else []

    def end(self, finish: str, stop: str | None, usage: Usage) -> list[Json]:
        reason = INCOMPLETE.get(finish)
        status = "completed" if reason is None else "incomplete"
        events = [] if self._output else self._opened("message")  # an answer without text is a message without text
        events += self._close(status)
        self._document["status"], self._document["usage"] = status, _usage(usage)
        self._document["incomplete_details"] = None if reason is None else {"reason": reason}
        return [*events, self._event(f"response.{status}", response=self._document)]

    def failure(self, error: ApiError) -> Json:
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _event(self, kind: str, **more: Any) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **more}

    def _text(self, kind: str, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> list[Json]:
        events: list[Json] = []
        if self._open is None or self._open["type"] != kind:
            events += [*self._close("completed"), *self._opened(kind)]
        part = self._part
        part["text"] += text
        if kind == "reasoning":
            return [*events, self._event("response.reasoning_text.delta", **self._place(True), delta=text)]
        part["logprobs"] += logprobs
        more = {"delta": text, "logprobs": list(logprobs)}
        return [*events, self._event("response.output_text.delta", **self._place(True), **more)]

    def _call(self, delta: Delta) -> list[Json]:
        events: list[Json] = []
        if delta.name is not None:
            item = {"id": new_id("fc"), "type": "function_call", "status": "in_progress", "call_id": delta.id,
                    "name": delta.name, "arguments": ""}  # fmt: skip
            events += [*self._close("completed"), *self._added(item)]
        if self._open is not None and delta.arguments:
            self._open["arguments"] += delta.arguments
            kind = "response.function_call_arguments.delta"
            events.append(self._event(kind, **self._place(False), delta=delta.arguments))
        return events

    @property
    def _part(self) -> Json:
        """The one part of the open item's content."""
        part: Json = (self._open or {})["content"][0]
        return part

    def _opened(self, kind: str) -> list[Json]:
        """Open an item of text with its part."""
        if kind == "reasoning":
            part: Json = {"type": "reasoning_text", "text": ""}
            item: Json = {"id": new_id("rs"), "type": kind, "status": "in_progress", "summary": [], "content": []}
        else:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {"id": new_id("msg"), "type": kind, "status": "in_progress", "role": "assistant", "content": []}
        events = self._added(item)
        item["content"].append(part)
        events.append(self._event("response.content_part.added", **self._place(True), part=_copied(part)))
        return events

    def _added(self, item: Json) -> list[Json]:
        self._output.append(item)
        self._open = item
        place = len(self._output) - 1
        return [self._event("response.output_item.added", output_index=place, item=_copied(item))]

    def _place(self, within: bool) -> Json:
        place = {"item_id": (self._open or {})["id"], "output_index": len(self._output) - 1}
        return {**place, "content_index": 0} if within else place

    def _close(self, status: str) -> list[Json]:
        """End the open item."""
        item = self._open
        if item is None:
            return []
        events = []
        if item["type"] == "function_call":
            more = {"arguments": item["arguments"], "name": item["name"]}
            events.append(self._event("response.function_call_arguments.done", **self._place(False), **more))
        else:
            part = self._part
            kind = "response.reasoning_text.done" if item["type"] == "reasoning" else "response.output_text.done"
            more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
            events.append(self._event(kind, **self._place(True), text=part["text"], **more))
            events.append(self._event("response.content_part.done", **self._place(True), part=_copied(part)))
        item["status"] = status
        place = len(self._output) - 1
        events.append(self._event("response.output_item.done", output_index=place, item=_copied(item)))
        self._open = None
        return events


def _copied(value: Json) -> Json:
    """Copy an item or a part as it is now: events are written later than they are made."""
    return {key: list(inner) if isinstance(inner, list) else inner for key, inner in value.items()}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt, "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion, "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }  # fmt: skip
