"""One call within generated text: where its JSON object ends, and which call it is. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NoReturn

MAX_DEPTH = 64
OUTSIDE, INSIDE = re.compile(r'["{}\[\]<]'), re.compile(r'["\\\x00-\x1f]')


class Scan:
    """Finds a JSON object's end, continuing where it stopped. `bad`: this can be no object. `closed`: the end of the
    first value within it that is an object or a list."""

    def __init__(self) -> None:
        self.at, self.depth, self.inside, self.bad, self.closed = 0, 0, False, False, 0

    def run(self, text: str) -> int | None:
        while not self.bad:
            match = (INSIDE if self.inside else OUTSIDE).search(text, self.at)
            if self.depth == 0 and text[self.at : match.start() if match else None].strip():
                self.bad = True
            elif match is None:
                self.at = len(text)
                return None
            elif self.inside and match[0] == "\\" and match.end() == len(text):
                self.at = match.start()  # the escaped character has not arrived yet
                return None
            elif self.inside:
                self.at = match.end() + (match[0] == "\\")
                self.inside, self.bad = match[0] != '"', match[0] not in '"\\'
            elif self._outside(match[0], match.end()):
                return self.at
        return None

    def _outside(self, sign: str, end: int) -> bool:
        """Move past a sign outside of strings; true at the object's end."""
        self.at, self.inside = end, sign == '"'
        self.bad = sign == "<" or (self.depth == 0 and sign != "{")
        self.depth += (sign in "{[") - (sign in "}]")
        self.bad = self.bad or self.depth > MAX_DEPTH
        if self.depth == 1 and sign in "}]" and not self.closed:
            self.closed = end
        return self.depth == 0 and not self.bad


def read(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """A call's name and its arguments as JSON text, or None when it is no call of one of `names`."""
    try:
        call = json.loads(text, parse_constant=_refuse)
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):  # some models write JSON within JSON
            arguments = json.loads(arguments, parse_constant=_refuse)
        if call.get("name") not in names or not isinstance(arguments, dict):
            return None
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)  # 1e999 is read as infinity
        if not written.isascii() and any("\ud800" <= letter <= "\udfff" for letter in written):
            written = json.dumps(arguments)
        return call["name"], written
    except (ValueError, TypeError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
