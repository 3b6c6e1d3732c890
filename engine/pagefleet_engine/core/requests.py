"""The values that travel between the API process and the engine: plain, frozen, encodable as msgpack."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from pagefleet_contract.engine_options import (
    BATCH_SIZES,
    DEFAULT_DRAFT_TOKENS,
    DEFAULT_PAGE_SIZE,
    HEAD,
    MASTER_PORT,
    MAX_ADAPTERS,
)
from pagefleet_engine.core.sampling_fields import SamplingFields


class Batching(StrEnum):
    """`CONTINUOUS`: requests join and leave at every token. `STATIC`: a batch runs to completion before the next."""

    CONTINUOUS = "continuous"
    STATIC = "static"


class Policy(StrEnum):
    """`PRIORITY`: a higher priority goes first, then who came first. `FCFS`: only who came first."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Finish(StrEnum):
    """`ABORT`: the engine did not take the request. `ERROR`: it could not compute it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True)
class Grammar:
    """The grammar that an answer must match. `kind`: json_object, json_schema, regex, grammar (Lark) or choice.

    `text`: the schema's or the choices' JSON, the regex, the grammar; empty for json_object.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class SamplingParams(SamplingFields):
    """The way in which tokens are chosen, and their number. `logprobs`: so many most likely tokens beside each chosen one.

    The other fields are those of core/sampling_fields.py.
    """

    max_tokens: int
    logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def plain(self) -> bool:
        """Whether a token's choice depends on nothing but its logits: what speculation needs."""
        return self.grammar is None and self.logprobs is None and not self.shapes_logits


class Pooling(StrEnum):
    """How a text's last hidden states become one vector: their mean, the last one, or the first one."""

    MEAN = "mean"
    LAST = "last"
    CLS = "cls"


@dataclass(frozen=True)
class EngineRequest:
    """A prompt and what to do with it. `arrival` and `deadline` are seconds of the engine's monotonic clock.

    A higher `priority` is served first and preempted last; within one priority the order is that of arrival. `n`
    answers share the prompt's pages. `adapter` names a loaded LoRA. Requests share cached prefixes only within one
    `cache_salt` and adapter. `embed` asks for the prompt's last hidden states, pooled, instead of an answer.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival: float
    priority: int = 0
    n: int = 1
    adapter: str | None = None
    cache_salt: str = ""
    deadline: float | None = None
    embed: bool = False
    pooling: Pooling = Pooling.MEAN


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of probabilities under the model, before temperature: the token's, and the most likely ones'."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TokenOutput:
    """The output of one step for answer `index` of a request. `queue_seconds` is set with the first token only.

    `logprobs` has one entry per token where asked for; `prompt_logprobs` comes with the first token; `embedding` with
    the only output of a request to embed.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    queue_seconds: float | None = None
    index: int = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    embedding: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Speculation:
    """`ngram` looks the last tokens up in the sequence itself; `draft` asks a smaller model at the URI `model`, and `eagle3`
    an EAGLE-3 head there.
    """

    method: str
    tokens: int = DEFAULT_DRAFT_TOKENS
    model: str | None = None

    @property
    def by_head(self) -> bool:
        return self.method == HEAD


Endpoint = Annotated[str, msgspec.Meta(pattern=r"^(tcp|ipc|inproc)://.+")]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class KVEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The publishing of the prefix cache's events: vLLM's keys and defaults (`vllm/config/kv_events.py`)."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: Endpoint = "tcp://*:5557"
    replay_endpoint: Endpoint | None = None
    buffer_steps: Annotated[int, msgspec.Meta(ge=0)] = 10_000  # batches that a replay can have
    hwm: Positive = 100_000  # batches that wait for one slow reader
    max_queue_size: Positive = 100_000  # batches that wait to be sent
    topic: str = ""

    @property
    def publishes(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine is started with. Sizes in tokens, pages and requests."""

    model: str
    quantization: str = "none"
    max_model_len: int | None = None
    page_size: int = DEFAULT_PAGE_SIZE
    num_pages: int | None = None
    kv_memory_fraction: float = 0.9
    kv_cache_dtype: str = "auto"
    max_num_seqs: int = BATCH_SIZES["cpu"].sequences
    max_num_batched_tokens: int = BATCH_SIZES["cpu"].tokens
    max_chunk_tokens: int = BATCH_SIZES["cpu"].chunk_tokens
    long_prompt_tokens: int = 0  # prompts of more go max_chunk_tokens a step
    batching: str = Batching.CONTINUOUS
    prefix_caching: bool = True
    scheduling_policy: str = Policy.PRIORITY
    speculation: Speculation | None = None
    adapters: tuple[tuple[str, str], ...] = ()
    max_adapters: int = MAX_ADAPTERS
    kernels: str = "auto"
    model_impl: str = "auto"
    device: str = "cpu"
    tensor_parallel_size: int = 1
    max_pinned_pages_share: float = 0.25  # of the KV pages
    kv_offload_memory: int = 0  # bytes of the host for cached pages, of all ranks together
    nodes: int = 1  # machines that the ranks are on, equally many on each
    kv_events_config: KVEventsConfig | None = None
    master_port: int = MASTER_PORT  # where the first of several waits for the others


@dataclass(frozen=True)
class EngineStats:
    """The engine's load, and its counters. pages_free + pages_cached + pages held by running requests + pages that only pins keep
    = pages_total. `pages_pinned` counts what `pins` keep and requests hold as well; at most `pages_pinnable`.

    `kv_event_batches` counts the batches of KV events, those included that were dropped.

    The adapters are the names that running and waiting requests asked for, in the order of the alphabet.
    """

    running: int
    waiting: int
    pages_total: int
    pages_free: int
    pages_cached: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    steps: int
    waiting_tokens: int = 0
    slots_held: int = 0
    slots_used: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()
    pins: int = 0
    pages_pinned: int = 0
    pages_pinnable: int = 0
    kv_event_batches: int = 0
    kv_event_batches_dropped: int = 0
