"""The size of an answer whose body another gateway shows: its bytes, and its tokens where the engine's `usage` states them.

It is what the Lua filter of our own Envoy reads (`envoy/answer_tokens.py`): OpenAI's `usage` comes last, in an event or an
object of its own. A name of `usage` inside a text has escaped quotes, and what engines repeat of the client's JSON (the schemas of its
tools) comes before it, so no request can forge a number.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from pagefleet_gateway.envoy.answer_tokens import TAIL_BYTES

PIECES = 3  # so many of the last ones may hold the usage
USAGE = re.compile(rb'"usage"\s*:\s*\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\}')
PROMPT, OUTPUT = (rb"prompt_tokens", rb"input_tokens"), (rb"completion_tokens", rb"output_tokens")


@dataclass
class AnswerSize:
    """`feed` takes the pieces of the body in order."""

    total: int = 0  # bytes
    _tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=PIECES))

    def feed(self, piece: bytes) -> None:
        if piece:
            self.total += len(piece)
            self._tail.append(piece[-TAIL_BYTES:])

    @property
    def prompt_tokens(self) -> int | None:
        return self._stated(PROMPT)

    @property
    def output_tokens(self) -> int | None:
        return self._stated(OUTPUT)

    def _stated(self, names: tuple[bytes, ...]) -> int | None:
        """Return the number of one of the names in the last `usage` of the tail that has one."""
        stated = None
        for usage in USAGE.findall(b"".join(self._tail)):
            for name in names:
                if number := re.search(rb'"' + name + rb'"\s*:\s*([0-9]{1,9})(?![0-9])', usage):
                    stated = int(number[1])
        return stated
