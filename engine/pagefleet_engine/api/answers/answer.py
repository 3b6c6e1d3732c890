"""One answer of a request as its tokens come: text, calls of tools, log probabilities, and why it ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from pagefleet_engine.api.answers.text import TextStream
from pagefleet_engine.api.parsing.deltas import Delta, Parser
from pagefleet_engine.core.requests import Finish, TokenLogprobs, TokenOutput


@dataclass(frozen=True)
class Scored:
    """A token with its log probabilities, and where its text begins, in characters of the answer."""

    logprobs: TokenLogprobs
    offset: int

    def moved(self, by: int) -> Scored:
        return Scored(self.logprobs, self.offset + by)


@dataclass(frozen=True)
class Piece:
    """One step of an answer: new text, also as reasoning, content and calls where a parser separates these. The last one says why it
    ended."""

    text: str = ""
    deltas: tuple[Delta, ...] = ()
    scored: tuple[Scored, ...] = ()
    finish: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.deltas or self.scored or self.finish)


class Answer:
    """One answer. `silent`: tokens that are no part of the text when they end it. `parser` finds reasoning and calls of
    tools in the text. `mute`: only the prompt's echo is requested, no tokens.
    """

    def __init__(self, text: TextStream, silent: Set[int], *, parser: Parser | None = None, mute: bool = False) -> None:
        self._text, self._silent, self._parser, self._mute = text, silent, parser, mute
        self._pending: list[Scored] = []
        self._thinks, self._unplaced = False, 0  # tokens whose text has not come: they go with the next text
        self.finish: str | None = None
        self.tokens = self.reasoning = 0
        self.logprob = 0.0
        """Sum of the tokens' log probabilities where the engine sends them."""

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._text.stop

    @property
    def mean_logprob(self) -> float:
        return self.logprob / max(1, self.tokens)

    def take(self, output: TokenOutput) -> Piece:
        """Add an output of the engine. Ignore one after the answer's end: the engine learns of the end a little later."""
        if self.finish is not None:
            return Piece()
        if self._mute:
            self.finish = output.finish_reason or Finish.LENGTH.value
            return Piece(finish=self.finish)
        before = self.tokens
        fresh = "".join(self._feed(output, at) for at in range(len(output.token_ids)) if not self._text.stopped)
        if output.finish_reason is not None and not self._text.stopped:
            fresh += self._text.finish()
        ended = Finish.STOP.value if self._text.stopped else output.finish_reason
        scored = self._release(ended)
        if self._parser is None:
            self.finish = ended
            return Piece(fresh, (), scored, ended)
        deltas = self._parser.feed(fresh)
        if ended is not None:
            deltas += self._parser.finish()
            # An answer cut by its limit stays `length`: its last call may not be whole.
            self.finish = "tool_calls" if self._parser.calls and ended == Finish.STOP else ended
        self._place(deltas, self.tokens - before)
        return Piece(fresh, tuple(deltas), scored, self.finish)

    def _place(self, deltas: Sequence[Delta], tokens: int) -> None:
        """Count the tokens that brought `deltas`, and those before them that brought none: as reasoning, or as what follows it."""
        self._unplaced += tokens
        if deltas[0].reasoning if deltas else self._thinks and self.finish is not None:
            self.reasoning += self._unplaced
        if deltas:
            self._thinks, self._unplaced = bool(deltas[-1].reasoning), 0

    def _feed(self, output: TokenOutput, at: int) -> str:
        token = output.token_ids[at]
        self.tokens += 1
        if output.logprobs is not None:
            self.logprob += output.logprobs[at].logprob
        last = at == len(output.token_ids) - 1 and output.finish_reason == Finish.STOP
        if last and token in self._silent:
            return ""
        if output.logprobs is not None:
            self._pending.append(Scored(output.logprobs[at], self._text.offset(token)))
        return self._text.feed([token])

    def _release(self, ended: str | None) -> tuple[Scored, ...]:
        """Return the tokens whose text was sent. Those of a stop string that was cut off never are."""
        if not self._pending:
            return ()
        if ended is not None and not self._text.stopped:
            ready, self._pending = self._pending, []
            return tuple(ready)
        count = sum(scored.offset < self._text.sent for scored in self._pending)
        ready, self._pending = self._pending[:count], self._pending[count:]
        return tuple(ready)
