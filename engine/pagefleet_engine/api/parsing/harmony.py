"""gpt-oss's harmony format: messages in channels. `analysis` is reasoning, `final` is content, and a message to
`functions.NAME` is a call. Pure.

https://github.com/openai/harmony, docs/format.md
"""

from __future__ import annotations

import re

from pagefleet_engine.api.parsing.deltas import Delta, Functions, overlap
from pagefleet_engine.api.parsing.json_scan import read

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
CHANNEL_NAME = re.compile(r"<\|channel\|>\s*([a-z]+)")
RECIPIENT = re.compile(r"to=functions\.([a-zA-Z0-9_-]{1,64})")
MAX_HEADER = 512


class HarmonyStream:
    """The text of one answer, with its markers. Calls of functions outside `functions` and invalid calls are content."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._text = ""  # not sent yet
        self._header: str | None = ""  # of the message that begins; None: within a message
        self._channel, self._name = "final", ""
        self._call = ""  # the call's arguments so far
        self._begun = False
        self.calls = 0

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        return self._run(last=False)

    def finish(self) -> list[Delta]:
        out = self._run(last=True)
        if self._header is None:
            out += self._ended()
        elif self._begun is False and self._text:
            out.append(Delta(content=self._text))
        self._text = ""
        return out

    def _run(self, last: bool) -> list[Delta]:
        out: list[Delta] = []
        while self._in_header(last) if self._header is not None else self._in_message(last, out):
            pass
        return out

    def _in_header(self, last: bool) -> bool:
        """Read up to a message's text; true when it begins."""
        rest = self._text.lstrip()
        known = (START, CHANNEL)
        if not self._begun and rest and not rest.startswith(known):
            if not last and any(marker.startswith(rest) for marker in known):
                return False
            self._begin("final", "")  # no harmony at all
            return True
        found = self._text.find(MESSAGE, 0, MAX_HEADER)
        if found < 0 and len(self._text) < MAX_HEADER:
            return False
        header = self._text[: found if found >= 0 else MAX_HEADER]
        self._text = self._text[len(header) + (len(MESSAGE) if found >= 0 else 0) :]
        channel, recipient = CHANNEL_NAME.search(header), RECIPIENT.search(header)
        self._begin(channel[1] if channel else "final", recipient[1] if recipient else "")
        return True

    def _begin(self, channel: str, name: str) -> None:
        self._begun, self._header, self._call = True, None, ""
        self._channel, self._name = channel, name if name in self._functions.schemas else ""

    def _in_message(self, last: bool, out: list[Delta]) -> bool:
        """Send the message's text; true when it has ended."""
        ends = [(at, len(end)) for end in (*ENDS, START) if (at := self._text.find(end)) >= 0]
        at, size = min(ends, default=(len(self._text) - (0 if last else overlap(self._text, *ENDS, START)), 0))
        text, self._text = self._text[:at], self._text[at:]
        if self._name:
            self._call += text
        elif text:
            out.append(Delta(reasoning=text) if self._channel == "analysis" else Delta(content=text))
        if not ends:
            return False
        if not self._text.startswith(START):
            self._text = self._text[size:]
        out += self._ended()
        return True

    def _ended(self) -> list[Delta]:
        """End the message; a call is sent now."""
        name, text = self._name, self._call
        self._header, self._name, self._call = "", "", ""
        if not name:
            return []
        call = read(f'{{"name": "{name}", "arguments": {text.strip() or "{}"}}}', self._functions.schemas)
        if call is None:
            return [Delta(content=text)] if text else []
        if self.calls >= self._functions.limit:
            return []
        self.calls += 1
        made = Delta(index=self.calls - 1, id=self._functions.new_id(), name=call[0], arguments=call[1])
        return [made]
