"""Pieces of an answer: reasoning, content, and calls of tools; and OpenAI's documents of them. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

MAX_CALLS = 32


@dataclass(frozen=True)
class Delta:
    """A piece of reasoning, of content, or of the call `index`: its first piece has `id` and `name`."""

    content: str = ""
    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    reasoning: str = ""

    def document(self) -> dict[str, Any]:
        """Return the document of OpenAI's chunks. Reasoning has vLLM's name and DeepSeek's, which other clients read."""
        if self.reasoning:
            return {"reasoning": self.reasoning, "reasoning_content": self.reasoning}
        if self.index is None:
            return {"content": self.content}
        function: dict[str, Any] = {"arguments": self.arguments}
        if self.name is None:
            return {"tool_calls": [{"index": self.index, "function": function}]}
        call = {"index": self.index, "id": self.id, "type": "function", "function": {"name": self.name, **function}}
        return {"tool_calls": [call]}


class Parser(Protocol):
    """Finds the deltas in one answer's text. The deltas' sum does not depend on how the text is split."""

    @property
    def calls(self) -> int:
        """The number of calls so far; finish_reason is "tool_calls" when it is not 0."""
        ...

    def feed(self, text: str) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """Send the rest: no more text follows."""
        ...


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True)
class Functions:
    """The functions that an answer may call: their parameters' JSON schemas by name. `limit`: calls beyond it are dropped.

    `eager`: a grammar keeps the text valid, so that arguments may be sent before their call is complete.
    """

    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    limit: int = MAX_CALLS
    eager: bool = False
    new_id: Callable[[], str] = new_call_id


class Written:
    """The deltas of one answer. Spaces around calls are no content: those at the end of content are held back."""

    def __init__(self, functions: Functions) -> None:
        self._functions, self._space, self._out = functions, "", list[Delta]()
        self.calls = 0

    @property
    def full(self) -> bool:
        """Whether the answer has as many calls as it may have."""
        return self.calls >= self._functions.limit

    def content(self, text: str) -> None:
        text = self._space + text
        content = text.rstrip()
        self._space = text[len(content) :]
        if content:
            self._out.append(Delta(content=content))

    def call(self, name: str, arguments: str) -> None:
        """Add a call; one beyond the limit is dropped."""
        self._space = ""
        if not self.full:
            self._out.append(Delta(index=self.calls, id=self._functions.new_id(), name=name, arguments=arguments))
            self.calls += 1

    def arguments(self, text: str) -> None:
        """Add to the arguments of the last call."""
        self._out.append(Delta(index=self.calls - 1, arguments=text))

    def take(self, last: bool) -> list[Delta]:
        """Return the deltas since the last time. `last`: no more text follows."""
        if last and not self.calls and self._space:
            self._out.append(Delta(content=self._space))
            self._space = ""
        out, self._out = self._out, []
        return out


class Plain:
    """Text without calls."""

    calls = 0

    def feed(self, text: str) -> list[Delta]:
        return [Delta(content=text)] if text else []

    def finish(self) -> list[Delta]:
        return []


@dataclass
class Message:
    """The whole answer that deltas make together."""

    content: str = ""
    reasoning: str = ""
    calls: list[Delta] = field(default_factory=list)

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> Message:
        made = cls()
        for delta in deltas:
            made.content += delta.content
            made.reasoning += delta.reasoning
            if delta.index is None:
                continue
            if delta.name is not None:
                made.calls.append(Delta(index=delta.index, id=delta.id, name=delta.name))
            call = made.calls[delta.index]
            made.calls[delta.index] = Delta(
                index=call.index, id=call.id, name=call.name, arguments=call.arguments + delta.arguments
            )
        return made


def message(deltas: Iterable[Delta]) -> dict[str, Any]:
    """The assistant's message that the deltas make together."""
    made = Message.of(deltas)
    document: dict[str, Any] = {
        "role": "assistant",
        "content": made.content if made.content or not made.calls else None,
    }
    if made.reasoning:
        document |= {"reasoning": made.reasoning, "reasoning_content": made.reasoning}
    if made.calls:
        document["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in made.calls
        ]
    return document


def overlap(text: str, *markers: str) -> int:
    """Return the length of the longest end of `text` that begins a marker."""
    longest = 0
    for marker in markers:
        most = min(len(marker) - 1, len(text))
        longest = max(longest, next((n for n in range(most, longest, -1) if text.endswith(marker[:n])), 0))
    return longest
