"""Reasoning between two tags, before an answer: deepseek_r1, qwen3 and others that write <think>. Pure."""

from __future__ import annotations

from enum import Enum, StrEnum, auto

from pagefleet_engine.api.parsing.deltas import Delta, Parser, overlap

BEGIN, END = "<think>", "</think>"
MARKERS = (BEGIN, END)
SPACES = " \t\r\n"  # around reasoning; the grammars know no others, so that none of these hides a call from them


class Reasoning(StrEnum):
    """How a model writes its reasoning. AUTO: as the chat template shows. DEEPSEEK_R1 begins with it, without a tag;
    QWEN3 may begin with a tag; OPENAI_GPTOSS writes it in a channel of its own (harmony).
    """

    AUTO = "auto"
    NONE = "none"
    DEEPSEEK_R1 = "deepseek_r1"
    QWEN3 = "qwen3"
    OPENAI_GPTOSS = "openai_gptoss"


def detected(template: str | None) -> Reasoning:
    """Return the parser for models with this chat template."""
    if template is None:
        return Reasoning.NONE
    if "<|channel|>" in template and "analysis" in template:
        return Reasoning.OPENAI_GPTOSS
    return Reasoning.QWEN3 if END in template else Reasoning.NONE


def begun(reasoning: Reasoning, prompt: str) -> bool | None:
    """Whether an answer to this prompt begins within its reasoning: the prompt may have opened it, or closed it.

    None: the answer's own text decides.
    """
    tail = prompt.rstrip()
    if tail.endswith(BEGIN):
        return True
    if tail.endswith(END):
        return False
    return True if reasoning is Reasoning.DEEPSEEK_R1 else None


def grammar_prefix(reasoning: Reasoning, begun: bool | None, *, forced: bool) -> str | None:
    """Return Lark rules that let reasoning come before the grammar `@answer`; None where none comes.

    `forced`: the grammar is one of calls.
    """
    text = "TEXT: /(.|\\n)*/\n"
    if reasoning is Reasoning.OPENAI_GPTOSS:
        analysis = 'analysis: <|channel|> "analysis" <|message|> TEXT <|end|> <|start|> "assistant"\n'
        final = "" if forced else '<|channel|> "final" <|message|> '
        return f"start: analysis? {final}@answer\n{analysis}{text}"
    if reasoning is Reasoning.NONE or begun is False:
        return None
    gap, tag, optional = "GAP: /[ \\n]{1,4}/\n", "" if begun else f'"{BEGIN}" ', "" if begun else "?"
    return f'start: thought{optional} @answer\nthought: within GAP?\nwithin[lazy]: {tag}TEXT "{END}"\n{gap}{text}'


class _State(Enum):
    OPENING = auto()  # nothing but spaces and a part of the tag yet
    REASONING = auto()
    GAP = auto()  # spaces between the reasoning and the answer
    ANSWER = auto()


class ReasoningStream:
    """The text of one answer. `begun` as `begun()` returns it; `inner` reads what follows the reasoning."""

    def __init__(self, begun: bool | None, inner: Parser) -> None:
        self._begun, self._inner = begun, inner
        self._state = _State.ANSWER if begun is False else _State.OPENING
        self._text = ""  # not sent yet
        self._space = ""  # held back: spaces around the reasoning are none of it
        self._sent = False  # a part of the reasoning

    @property
    def calls(self) -> int:
        return self._inner.calls

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        return self._run(last=False)

    def finish(self) -> list[Delta]:
        return [*self._run(last=True), *self._inner.finish()]

    def _run(self, last: bool) -> list[Delta]:
        out: list[Delta] = []
        if self._state is _State.OPENING:
            self._open(last)
        if self._state is _State.REASONING:
            out += self._reason(last)
        if self._state is _State.GAP:
            self._text = self._text.lstrip(SPACES)
            self._state = _State.ANSWER if self._text else _State.GAP
        if self._state is _State.ANSWER and self._text:
            text, self._text = self._text, ""
            out += self._inner.feed(text)
        return out

    def _open(self, last: bool) -> None:
        rest = self._text.lstrip(SPACES)
        if not last and rest != BEGIN and BEGIN.startswith(rest):
            return
        tagged = rest.startswith(BEGIN)
        self._state = _State.REASONING if tagged or self._begun else _State.ANSWER
        if tagged:
            self._text = rest[len(BEGIN) :]

    def _reason(self, last: bool) -> list[Delta]:
        end = self._text.find(END)
        size = end if end >= 0 else len(self._text) - (0 if last else overlap(self._text, END))
        text, self._text = self._space + self._text[:size], self._text[size:]
        if not self._sent:
            text = text.lstrip()
        words = text.rstrip()
        self._space, self._sent = text[len(words) :], self._sent or bool(words)
        if end >= 0:
            self._text, self._state = self._text[len(END) :], _State.GAP
        return [Delta(reasoning=words)] if words else []
