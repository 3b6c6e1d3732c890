"""Mistral's calls: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`, and since its tokenizer v11
`[TOOL_CALLS]name[ARGS]{...}`, with or without `[ARGS]` and `[CALL_ID]...`. Pure.

https://github.com/mistralai/mistral-common, tokens/tokenizers/instruct.py
"""

from __future__ import annotations

import re
import secrets
import string

from pagefleet_engine.api.parsing.deltas import Functions
from pagefleet_engine.api.parsing.json_scan import Scan
from pagefleet_engine.api.parsing.marked_calls import Body, Call, MarkedCalls, NoCall

BEGIN = "[TOOL_CALLS]"
MARKERS = (BEGIN, "[ARGS]", "[CALL_ID]")
HEAD = re.compile(r"\s*([a-zA-Z0-9_-]{1,64})\s*(?:\[CALL_ID\][a-zA-Z0-9]{1,64}\s*)?(?:\[ARGS\])?\s*")
MAX_HEAD = 256
LETTERS = string.ascii_letters + string.digits


def stream(functions: Functions) -> MarkedCalls:
    return MarkedCalls(functions, _Block, BEGIN)


def call_id() -> str:
    """Return nine letters or digits: Mistral's templates refuse every other id when it is sent back."""
    return "".join(secrets.choice(LETTERS) for _ in range(9))


class _Block(Body):
    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.at = len(BEGIN)
        self._scan: Scan | None = None  # of the object that begins there
        self._name: str | None = None
        self._list = False
        self._complete = 0  # where the last complete call ended
        self._found: list[Call] = []

    def end(self, text: str, last: bool) -> int | None:
        end = self._read(text)
        return self._complete if end is None and last and self._found else end

    def calls(self, text: str) -> list[Call]:
        return self._found

    def _read(self, text: str) -> int | None:
        while True:
            if self._scan is None and not self._head(text):
                return None
            if self._list and self._scan is None:  # the list has ended
                return self.at
            if self._scan is None or (size := self._object(text)) is None:
                return None
            self._take(text[self.at : self.at + size])
            self.at, self._scan = self.at + size, None
            self._complete = self.at
            if not self._list:
                return self.at

    def _object(self, text: str) -> int | None:
        scan = self._scan
        if scan is None:
            return None
        size = scan.run(text[self.at :])
        if scan.bad:
            raise NoCall
        return size

    def _head(self, text: str) -> bool:
        """Read up to the next object, or to the end of the list; false when more text is needed."""
        rest = text[self.at :]
        bare = rest.lstrip()
        if not bare:
            return False
        skipped = len(rest) - len(bare)
        if self._list or (bare[0] == "[" and not self._found):
            sign = bare[0]
            if not self._list and sign == "[":
                self._list, self.at = True, self.at + skipped + 1
                return self._head(text)
            if sign == "]":
                self.at += skipped + 1
                return True
            if sign == "," and self._found:
                self.at += skipped + 1
                return self._head(text)
            if sign != "{":
                raise NoCall
            self.at += skipped
            self._scan = Scan()
            return True
        opening = rest.find("{", 0, MAX_HEAD)
        if opening < 0:
            if len(rest) >= MAX_HEAD:
                raise NoCall
            return False
        head = HEAD.fullmatch(rest[:opening])
        if head is None or head[1] not in self.functions.schemas:
            raise NoCall
        self._name, self.at, self._scan = head[1], self.at + opening, Scan()
        return True

    def _take(self, text: str) -> None:
        whole = text if self._list else f'{{"name": "{self._name}", "arguments": {text}}}'
        self._found.append(self.call(whole))
