"""Calls between markers, sent when they are complete: what the syntaxes have in common that are not one JSON object. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from pagefleet_engine.api.parsing.deltas import Delta, Functions, Written, overlap
from pagefleet_engine.api.parsing.json_scan import read

MAX_FAILURES = 32  # each is looked at again when a long text ends within a block


@dataclass(frozen=True)
class Call:
    """`arguments` is JSON text."""

    name: str
    arguments: str


class NoCall(Exception):
    """What follows the marker is no call."""


class Body(ABC):
    """One block of calls, read as it grows. Its text begins with the marker."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.at = 0  # where reading goes on

    @abstractmethod
    def end(self, text: str, last: bool) -> int | None:
        """Return where the block ends, None when more text is needed. Raises NoCall. `last`: no more text follows."""

    @abstractmethod
    def calls(self, text: str) -> list[Call]:
        """Return the calls of a block that is complete; a block without any is none. Raises NoCall."""

    def call(self, text: str) -> Call:
        """Return the call that a JSON object of `name` and `arguments` is. Raises NoCall."""
        known = read(text, self.functions.schemas)
        if known is None:
            raise NoCall
        return Call(*known)


class MarkedCalls:
    """The text of one answer. `begins`: markers that begin a block of calls. A block that is none is content.

    `whole`: only the answer's beginning may be a block, and what follows a block is content.
    """

    def __init__(
        self,
        functions: Functions,
        body: Callable[[Functions], Body],
        *begins: str,
        whole: bool = False,
    ) -> None:
        self._functions, self._make, self._begins, self._whole = functions, body, begins, whole
        self._text = ""  # not sent yet
        self._body: Body | None = None  # the block that the text begins with
        self._plain = False  # no more blocks can come
        self._left = MAX_FAILURES  # blocks that may be none, before the rest is content
        self._written = Written(functions)

    @property
    def calls(self) -> int:
        return self._written.calls

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        return self._run(last=False)

    def finish(self) -> list[Delta]:
        return self._run(last=True)

    def _run(self, last: bool) -> list[Delta]:
        while self._block(last) if self._body is not None else self._content(last):
            pass
        return self._written.take(last)

    def _content(self, last: bool) -> bool:
        """Send content up to the next marker; true when a block begins."""
        if self._plain:
            self._send(len(self._text))
            return False
        if self._whole:
            return self._beginning(last)
        found = [at for begin in self._begins if (at := self._text.find(begin)) >= 0]
        if found:
            self._send(min(found))
            self._body = self._make(self._functions)
            return True
        self._send(len(self._text) - (0 if last else overlap(self._text, *self._begins)))
        return False

    def _beginning(self, last: bool) -> bool:
        rest = self._text.lstrip()
        if not last and (not rest or any(begin.startswith(rest) for begin in self._begins)):
            return False
        if rest.startswith(self._begins):
            self._send(len(self._text) - len(rest))
            self._body = self._make(self._functions)
            return True
        self._plain = True
        return True

    def _block(self, last: bool) -> bool:
        """Read the block that the text begins with; true when it has ended, or is none."""
        if self._body is None:
            return False
        try:
            end = self._body.end(self._text, last)
            if end is None and not last:
                return False
            if end is None:
                raise NoCall
            calls = self._body.calls(self._text[:end])
            if not calls:
                raise NoCall
        except NoCall:
            self._left -= 1
            self._body, self._plain = None, self._plain or self._whole or not self._left
            self._send(next((len(begin) for begin in self._begins if self._text.startswith(begin)), 1))
            return True
        self._body, self._text = None, self._text[end:]
        self._plain = self._whole
        for call in calls:
            self._written.call(call.name, call.arguments)
        return True

    def _send(self, size: int) -> None:
        """Send the first `size` characters as content."""
        self._written.content(self._text[:size])
        self._text = self._text[size:]
