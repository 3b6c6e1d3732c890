"""The charges of requests that have not ended, and their settlement with the tokens that the answer had. Pure.

An engine that reports its tokens is believed. An answer without such a report (the client left, or a stream without
`stream_options.include_usage`) counts by its bytes, never above what was charged. The bytes of a token are learned per service
from answers that reported both.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace

from pagefleet_gateway.cluster.service import ServiceKey
from pagefleet_gateway.cluster.steps import Steps, forget, parts
from pagefleet_gateway.limits.rate_limits import Charge, RateLimits

BYTES_PER_TOKEN = 64.0  # of an answer whose service reported none yet: a stream's event has 150 to 250, plain text 4
# A stream's event is no larger for a token of plain text. Log probabilities and the like make an answer as large as its client likes, and
# must not make the tokens of others cheap.
LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 4.0, 256.0
GAIN_FEWER, GAIN_MORE = 0.2, 0.02  # towards fewer bytes, which mean more tokens, it learns ten times as fast


@dataclass(frozen=True)
class Answer:
    """How a request ended. `code` 0: without an answer. None: not known."""

    code: int
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    body_bytes: int | None = None


@dataclass(frozen=True)
class OpenCharge:
    charge: Charge
    service: ServiceKey
    prompt_tokens: int  # estimated
    deadline: float  # after it no end of the request can come any more
    api_key: str = ""  # the name of the client's API key


@dataclass(frozen=True)
class Used:
    """The tokens that a request has cost: the engine's numbers, else estimates."""

    prompt: int
    output: int


class Charges:
    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits
        self._open: dict[str, OpenCharge] = {}
        self._sizes: dict[ServiceKey, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: str, charge: OpenCharge) -> None:
        self._open[request_id] = charge

    def add(self, request_id: str, charge: OpenCharge) -> None:
        """Open a charge of a request that another service answers, beside the one that it may have."""
        own = self._open.get(request_id)
        if own is None:
            self._open[request_id] = charge
            return
        of_requests = own.charge.of_requests + charge.charge.of_requests
        both = Charge(own.charge.tokens, of_requests, own.charge.of_tokens + charge.charge.of_tokens)
        self._open[request_id] = replace(own, charge=both, deadline=max(own.deadline, charge.deadline))

    def charged(self, request_id: str) -> int | None:
        """Return the tokens of the request's charge; None without one."""
        opened = self._open.get(request_id)
        return None if opened is None else opened.charge.tokens

    def refund(self, request_id: str) -> None:
        """Give everything back: the gateway refused the request after it was charged, or the client left the queue."""
        opened = self._open.pop(request_id, None)
        if opened is not None:
            self._limits.settle(opened.charge, 0, counts=False)

    def settle(self, request_id: str, answer: Answer) -> Used | None:
        """Replace the request's charge by what it cost, and return that. A 503 costs nothing, and another error a request without
        tokens. None: no such request is open.
        """
        opened = self._open.pop(request_id, None)
        if opened is None:
            return None
        used = Used(0, 0) if answer.code >= 400 else self._used(opened, answer)
        self._limits.settle(opened.charge, used.prompt + used.output, counts=answer.code != 503)
        if opened.api_key:
            self._limits.budgets.add(opened.api_key, used.prompt + used.output)
        return used

    def sweep(self, keys: Container[ServiceKey], now: float) -> Steps:
        """Forget services that are not among `keys`, and requests whose end can no longer come. Their charge stays."""
        for part in parts(self._open):
            for request_id in part:
                if request_id in self._open and self._open[request_id].deadline < now:
                    del self._open[request_id]
            yield
        yield from forget(self._sizes, keys)

    def _used(self, opened: OpenCharge, answer: Answer) -> Used:
        prompt = opened.prompt_tokens if answer.prompt_tokens is None else answer.prompt_tokens
        if answer.output_tokens is not None:
            if answer.body_bytes and answer.output_tokens:
                self._learn(opened.service, answer.body_bytes / answer.output_tokens)
            return Used(prompt, answer.output_tokens)
        most = max(0, opened.charge.tokens - opened.prompt_tokens)
        if answer.body_bytes is None:
            return Used(prompt, most)
        bytes_per_token = self._sizes.get(opened.service, BYTES_PER_TOKEN)
        return Used(prompt, min(most, math.ceil(answer.body_bytes / bytes_per_token)))

    def _learn(self, service: ServiceKey, size: float) -> None:
        size = min(max(LEAST_BYTES_PER_TOKEN, size), MOST_BYTES_PER_TOKEN)
        known = self._sizes.setdefault(service, size)
        self._sizes[service] = known + (GAIN_FEWER if size < known else GAIN_MORE) * (size - known)
