"""Turns tokens into text as they come: whole characters only, and never a part of a stop string. Pure."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from itertools import dropwhile

Decode = Callable[[Sequence[int]], str]
TokenBytes = Callable[[int], bytes]
MAX_CUT = 3  # bytes of a character that is not complete
MAX_HIDDEN = 8  # tokens that are stored although they have brought no text yet


class TextStream:
    """One answer's text. `decode` and `token_bytes` are the tokenizer's; `stops` end the text before themselves, or after
    with `include_stop`. The text of the first `unstoppable` tokens is not searched for them. `before`: the tokens of the
    text that this one goes on with, without which tokenizers drop a space at the beginning.
    """

    def __init__(
        self,
        decode: Decode,
        token_bytes: TokenBytes,
        stops: tuple[str, ...],
        *,
        include_stop: bool = False,
        unstoppable: int = 0,
        before: Sequence[int] = (),
    ) -> None:
        self._decode, self._token_bytes = decode, token_bytes
        self._stops, self._include, self._unstoppable = stops, include_stop, unstoppable
        self._ids = [] if is_cut(b"".join(map(token_bytes, before[-MAX_CUT:]))[-MAX_CUT:]) else self._whole(before)
        # ids[context:read] are decoded and returned, the others are not yet
        self._context, self._read = 0, len(self._ids)
        self._fed = 0
        self._held = ""
        self.stopped = False
        self.stop: str | None = None
        """The stop string that was reached."""
        self.sent = 0
        """Characters returned."""

    def offset(self, token: int) -> int:
        """Return where the text of the next token begins, in characters. Tokens of one character begin at one place."""
        known, waiting = self.sent + len(self._held), self._ids[self._read :]
        if not waiting:  # nearly always
            return known
        data = b"".join(map(self._token_bytes, waiting))
        size = cut_size(data[-MAX_CUT:])
        if size and _goes_on(data[-size:] + self._token_bytes(token)[:1]):
            return known + len(data[:-size].decode(errors="replace"))
        before = self._decode(self._ids[self._context : self._read])
        return known + max(0, len(self._decode(self._ids[self._context :])) - len(before))

    def feed(self, ids: Sequence[int]) -> str:
        """Add tokens and return the text that is now certain. Set `stopped` when a stop string was reached."""
        self._ids += ids
        self._fed += len(ids)
        if not self._cut():
            before = self._decode(self._ids[self._context : self._read])
            after = self._decode(self._ids[self._context :])
            if after == before and (before or self._read - self._context >= MAX_HIDDEN):
                del self._ids[self._read :]  # without a text: the next token goes on with the text before them
            elif after == before:
                self._read = len(self._ids)  # a space that begins a text has none, before the next token it has one
            elif len(after) >= len(before):
                self._held += after[len(before) :]
                self._context, self._read = self._read, len(self._ids)
        return self._release()

    def finish(self) -> str:
        """Return the held text, when no more tokens come."""
        if self.stopped:
            return ""
        rest = self._decode(self._ids[self._context :])[len(self._decode(self._ids[self._context : self._read])) :]
        self._held += rest
        self._read = len(self._ids)
        text = self._release()
        if not self.stopped:
            text += self._give(len(self._held))
        return text

    def _whole(self, ids: Sequence[int]) -> list[int]:
        """Leave out first tokens that begin within a character: bytes of a part spoil those of all that follow them, if a tokenizer
        decodes them together."""
        return list(dropwhile(lambda token: b"\x80" <= self._token_bytes(token)[:1] < b"\xc0", ids))

    def _cut(self) -> bool:
        """Whether the last character's bytes are not complete. U+FFFD at the end of the text does not show it: a model may
        write that character, and bytes that are none."""
        last = self._ids[max(self._read, len(self._ids) - MAX_CUT) :]
        if len(last) == 1:  # nearly always
            return is_cut(self._token_bytes(last[0])[-MAX_CUT:])
        return is_cut(b"".join(map(self._token_bytes, last))[-MAX_CUT:])

    def _release(self) -> str:
        if self.stopped:
            return ""
        if not self._stops or self._fed <= self._unstoppable:
            return self._give(len(self._held))
        matches = [(index, len(stop), stop) for stop in self._stops if (index := self._held.find(stop)) >= 0]
        if matches:
            begin, size, self.stop = min(matches)
            text = self._give(begin + size if self._include else begin)
            self._held, self.stopped = "", True
            return text
        return self._give(len(self._held) - self._possible_stop())

    def _give(self, size: int) -> str:
        text, self._held = (self._held, "") if size == len(self._held) else (self._held[:size], self._held[size:])
        self.sent += size
        return text

    def _possible_stop(self) -> int:
        """Length of the longest tail that may be a stop string's beginning."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest


def is_cut(tail: bytes) -> bool:
    """Whether bytes end within a character of UTF-8 that more bytes can complete."""
    return cut_size(tail) > 0


def cut_size(tail: bytes) -> int:
    """Return how many bytes at the end begin a character of UTF-8 that more bytes can complete. RFC 3629, section 3."""
    for size, byte in enumerate(reversed(tail), start=1):
        if byte & 0xC0 != 0x80:
            needed = 2 if 0xC2 <= byte <= 0xDF else 3 if 0xE0 <= byte <= 0xEF else 4 if 0xF0 <= byte <= 0xF4 else 0
            return size if needed > size else 0
    return 0


def _goes_on(data: bytes) -> bool:
    """Whether bytes are one character of UTF-8, or the beginning of one."""
    try:
        return len(getincrementaldecoder("utf-8")().decode(data)) <= 1
    except UnicodeDecodeError:
        return False
