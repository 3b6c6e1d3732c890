"""Checks the grammars that clients send, in a thread of their own, before an engine sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pagefleet_engine.api.base.errors import ApiError, invalid
from pagefleet_engine.api.constrained.formats import Asked
from pagefleet_engine.model.text.grammar_check import Checker, Unchecked
from pagefleet_engine.model.text.tokenizer import Tokenizer

MAX_PENDING = 32


class Grammars:
    """The checks of one model, one after another. Its process starts with the first."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._checker: Checker | None = None
        self._pending = 0

    async def check(self, asked: Sequence[Asked]) -> None:
        """Raises ApiError: 400 that names the field of what does not compile, 429 when too many checks wait or one takes too long."""
        if self._pending >= MAX_PENDING:
            raise ApiError(429, "too many grammars wait to be checked", code="queue_full", retry_after=2)
        self._pending += 1
        try:
            for one in asked:
                try:
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._check, one)
                except Unchecked as error:
                    raise ApiError(429, str(error), param=one.param, code="queue_full", retry_after=2) from error
                except ValueError as error:
                    raise invalid(one.param, f"{one.param}: {error}"[:500], "invalid_grammar") from error
        finally:
            self._pending -= 1

    def close(self) -> None:
        """Ends the process and the thread; a check under way fails."""
        if self._checker is not None:
            self._checker.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _check(self, asked: Asked) -> None:
        if self._checker is None:
            tokenizer = self._tokenizer
            self._checker = Checker(tokenizer.backend.to_str(), tokenizer.vocab_size, tokenizer.eos_token_ids)
        self._checker.check(asked.grammar)
