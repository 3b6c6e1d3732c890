"""Calls that are one JSON object each. Hermes and Qwen: `<tool_call>{name, arguments}</tool_call>`, anywhere. Llama 3: the whole
answer is `{name, parameters}`, several of them with `;` between. Pure.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from pagefleet_engine.api.parsing.deltas import Delta, Functions, Written, overlap
from pagefleet_engine.api.parsing.json_scan import Scan, read

BEGIN, END, PYTHON = "<tool_call>", "</tool_call>", "<|python_tag|>"
PREFIX = re.compile(r"[ \t\r\n]*(?:<\|python_tag\|>)?[ \t\r\n]*")  # the grammar of `auto` has the same spaces
HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\\x00-\x1f]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class _State(Enum):
    START = auto()  # without tags: nothing but spaces yet
    CONTENT = auto()
    CALL = auto()
    TAIL = auto()  # after a call, before its end marker or the next call


class JsonCalls:
    """The text of one answer. Calls of functions that are not given and invalid calls are content.

    A call is sent when it is complete. With `eager`, for text that a grammar keeps valid, its arguments are sent as they
    are written. `tagged`: each call is between tags, as Hermes' are.
    """

    def __init__(
        self,
        functions: Functions,
        *,
        tagged: bool,
    ) -> None:
        self._names, self._eager, self._tagged = functions.schemas.keys(), functions.eager, tagged
        self._state = _State.CONTENT if tagged else _State.START
        self._text = ""  # not sent yet
        self._opening = ""  # the text that led to the state CALL: content, if no call follows
        self._plain = False  # without tags: no more calls can come
        self._scan = Scan()
        self._sent: int | None = None  # eager: where the arguments that are not sent yet begin in the call's text
        self._written = Written(functions)

    @property
    def calls(self) -> int:
        return self._written.calls

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        return self._run(last=False)

    def finish(self) -> list[Delta]:
        """Send the rest: no more text follows."""
        return self._run(last=True)

    def _run(self, last: bool) -> list[Delta]:
        steps = {
            _State.START: self._start,
            _State.CONTENT: self._content,
            _State.CALL: self._call,
            _State.TAIL: self._tail,
        }
        while steps[self._state](last):
            pass
        return self._written.take(last)

    def _start(self, last: bool) -> bool:
        prefix = PREFIX.match(self._text)
        size = prefix.end() if prefix else 0
        rest = self._text[size:]
        if not last and (not rest or PYTHON.startswith(rest)):
            return False
        if rest.startswith("{"):
            return self._open(size)
        self._plain, self._state = True, _State.CONTENT
        return True

    def _content(self, last: bool) -> bool:
        if self._plain:
            self._send_content(len(self._text))
            return False
        at = self._text.find(BEGIN)
        if at >= 0:
            self._send_content(at)
            return self._open(len(BEGIN))
        held = 0 if last else overlap(self._text, BEGIN)
        self._send_content(len(self._text) - held)
        return False

    def _call(self, last: bool) -> bool:
        end = self._scan.run(self._text)
        if self._eager:
            self._send_arguments()
        if end is None and not self._scan.bad and not last:
            return False
        if self._sent is not None:  # it is sent already, and cannot become content any more
            self._text, self._state = self._text[end or self._scan.at :], _State.TAIL
            return True
        call = read(self._text[:end], self._names) if end is not None else None
        if call is None:
            self._text = self._opening + self._text
            self._state, self._plain = _State.CONTENT, not self._tagged
            self._send_content(len(self._opening))
            return True
        self._text, self._state = self._text[end:], _State.TAIL
        self._written.call(*call)
        return True

    def _tail(self, last: bool) -> bool:
        if self._tagged:
            rest = self._text.lstrip()
            if rest.startswith(END):
                self._text = rest[len(END) :]
            elif END.startswith(rest):
                if last:
                    self._text = ""
                return False
            self._state = _State.CONTENT
            return True
        rest = self._text.lstrip(" \t\r\n;")
        if rest.startswith("{"):
            return self._open(len(self._text) - len(rest))
        if not rest:
            if last:
                self._text = ""
            return False
        self._plain, self._state = True, _State.CONTENT
        return True

    def _open(self, size: int) -> bool:
        self._opening, self._text = self._text[:size], self._text[size:]
        self._scan, self._sent, self._state = Scan(), None, _State.CALL
        return True

    def _send_content(self, size: int) -> None:
        """Send the first `size` characters as content."""
        self._written.content(self._text[:size])
        self._text = self._text[size:]

    def _send_arguments(self) -> None:
        if self._sent is None:
            head = HEAD.match(self._text)
            if head is None or head[1] not in self._names or self._written.full:
                return
            self._sent = head.end()
            self._written.call(head[1], "")
        upto = self._scan.closed or self._scan.at
        if upto > self._sent:
            self._written.arguments(self._text[self._sent : upto])
            self._sent = upto
