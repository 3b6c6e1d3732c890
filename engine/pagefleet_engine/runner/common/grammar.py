"""Keeps sampling within a grammar: one matcher a sequence sets the logits that would leave it to -inf."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.text import tokenizer
from pagefleet_engine.model.text.grammar import Compiler, GrammarSpec

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from tokenizers import Tokenizer as Fast


class Grammars:
    """The grammars of one model. `vocab_size` is the length of a row of logits; nothing is loaded until compile."""

    def __init__(self, backend: Fast, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._backend = backend
        self.vocab_size, self.eos_token_ids = vocab_size, tuple(eos_token_ids)
        self._compiler: Compiler | None = None

    def compile(self, spec: GrammarSpec) -> Matcher:
        """A matcher at the grammar's beginning. Raises ValueError that says what is wrong with the grammar."""
        if self._compiler is None:
            self._compiler = Compiler(self._backend.to_str(), self.vocab_size, self.eos_token_ids)
        return Matcher(self._compiler.compile(spec), self.vocab_size, self.eos_token_ids)


def on_demand(model: str, vocab_size: int, eos_token_ids: Sequence[int]) -> Callable[[], Grammars]:
    """The grammars of the model with this URI; its tokenizer is loaded at the first call."""

    @functools.cache
    def made() -> Grammars:
        loaded = tokenizer.load(source.resolve(model))
        return Grammars(loaded.backend, vocab_size, eos_token_ids)

    return made


class Matcher:
    """The position of one sequence within its grammar. Not thread-safe."""

    def __init__(self, inner: LLMatcher, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._inner, self._vocab_size = inner, vocab_size
        self._eos = np.array(sorted(set(eos_token_ids)), dtype=np.intp)

    def fill(self, row: torch.Tensor) -> None:
        """Set the logits of the tokens that the grammar does not allow next to -inf, in place. row: float [vocab], or [1, vocab].

        Where no token is allowed, as after the end or when the matcher ran into a limit, the eos tokens stay allowed.
        """
        refused = self.refused()
        if row.device.type == "cpu":  # torch would split so short a row over threads, which takes longer
            np.putmask(row.detach().numpy(), refused, -np.inf)
        else:
            row.masked_fill_(torch.from_numpy(refused).to(row.device), float("-inf"))

    def refused(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """bool [vocab], true where a token would leave the grammar. Never all true, unless the model has no eos."""
        if not self._inner.is_stopped():
            packed = np.frombuffer(self._inner.compute_bitmask(), dtype=np.uint8)
            # The library pads to whole words; ~ first, so that the unpacked bytes are the answer without a copy.
            bits = np.unpackbits(~packed, count=self._vocab_size, bitorder="little").view(np.bool_)
            if not self._inner.is_error() and not bits.all():
                return bits
        bits = np.ones(self._vocab_size, dtype=np.bool_)
        bits[self._eos] = False
        return bits

    def accept(self, token: int) -> None:
        """Move on by a token that `fill` allowed. Any other token ends the grammar: from then on only eos is allowed."""
        if not self._inner.is_stopped():
            self._inner.consume_token(token)

    @property
    def finished(self) -> bool:
        """The grammar allows nothing more: the sequence may stop here, without an eos token."""
        return bool(self._inner.is_stopped())

    @property
    def error(self) -> str | None:
        """Return why the matcher gave up, or None. The answer is not complete when it did."""
        return self._inner.get_error() or None if self._inner.is_error() else None
