"""What travels between the API process and the engine: plain, frozen, encodable as msgpack."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Batching(StrEnum):
    """`CONTINUOUS`: requests join and leave at every token. `STATIC`: a batch runs to completion before the next."""

    CONTINUOUS = "continuous"
    STATIC = "static"


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off.

    A `seed` fixes the draws of a request whatever else is in its batch: they are keyed on (seed, position).
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class EngineRequest:
    """One sequence to generate. `arrival` is seconds of the engine's monotonic clock.

    A higher `priority` is served first and preempted last; within one priority the order is that of arrival.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival: float
    priority: int = 0


@dataclass(frozen=True)
class TokenOutput:
    """What one step brought for one request. `queue_seconds` is set with the first token only."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    queue_seconds: float | None = None


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine is started with. Sizes in tokens, pages and requests."""

    model: str
    quantization: str = "none"
    max_model_len: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    kv_memory_fraction: float = 0.9
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    batching: str = Batching.CONTINUOUS


@dataclass(frozen=True)
class EngineStats:
    """Counters and levels. pages_free + pages_cached + pages held by running requests = pages_total."""

    running: int
    waiting: int
    pages_total: int
    pages_free: int
    pages_cached: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    steps: int
