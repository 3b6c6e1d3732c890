"""DeepSeek's calls, of V3 and R1 (`function<sep>name` and a fenced JSON object) and of V3.1 (`name<sep>{...}`). Pure.

https://huggingface.co/deepseek-ai/DeepSeek-V3.1, tokenizer_config.json
"""

from __future__ import annotations

import re

from pagefleet_engine.api.parsing.deltas import Functions
from pagefleet_engine.api.parsing.marked_calls import Body, Call, MarkedCalls, NoCall

BAR, GAP = "\N{FULLWIDTH VERTICAL LINE}", "\N{LOWER ONE EIGHTH BLOCK}"


def _marker(*words: str) -> str:
    return f"<{BAR}{GAP.join(words)}{BAR}>"


CALLS_BEGIN, CALLS_END = _marker("tool", "calls", "begin"), _marker("tool", "calls", "end")
CALL_BEGIN, CALL_END = _marker("tool", "call", "begin"), _marker("tool", "call", "end")
SEPARATOR = _marker("tool", "sep")
MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)
FENCED = re.compile(r"([a-zA-Z0-9_-]{1,64})\s*```json\s*(\{.*\})\s*```", re.DOTALL)


def stream(functions: Functions) -> MarkedCalls:
    return MarkedCalls(functions, _Block, CALLS_BEGIN, CALL_BEGIN)


class _Block(Body):
    def end(self, text: str, last: bool) -> int | None:
        marker = CALLS_END if text.startswith(CALLS_BEGIN) else CALL_END
        found = text.find(marker, max(0, self.at - len(marker)))
        self.at = len(text)
        if found >= 0:
            return found + len(marker)
        if last:  # cut, or ended without the marker: the calls that are complete count
            complete = text.rfind(CALL_END)
            return complete + len(CALL_END) if complete >= 0 else None
        return None

    def calls(self, text: str) -> list[Call]:
        made = []
        for part in text.split(CALL_BEGIN)[1:]:
            first, found, rest = part.partition(CALL_END)[0].partition(SEPARATOR)
            fenced = FENCED.fullmatch(rest.strip()) if first.strip() == "function" else None
            name, arguments = (fenced[1], fenced[2]) if fenced else (first.strip(), rest.strip())
            if not found or name not in self.functions.schemas:
                raise NoCall
            made.append(self.call(f'{{"name": "{name}", "arguments": {arguments}}}'))
        return made
