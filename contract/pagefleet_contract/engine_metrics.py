"""The names of our engine's metrics, and the annotation by which a pod reports where its engine listens and what its metrics are
called. The operator writes it to the pods of other engines; operator and gateway read it. Pure: reads no metrics page.

A number is named by a selector: NAME (all its series summed up), NAME{label="value"} (only those with that label), or
NAME{label} (the number that stands in that label, as in an info metric). An empty selector: the engine does not report it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pagefleet_contract.names import ENGINE_ANNOTATION, ENGINE_PORT

# Of our engine. Each carries the meaning of vLLM's metric of the same name, whose prefix is `vllm:`.
PREFIX, VLLM_PREFIX = "pagefleet_", "vllm:"
RUNNING = "pagefleet_num_requests_running"
WAITING = "pagefleet_num_requests_waiting"
WAITING_TOKENS = "pagefleet_num_tokens_waiting"
MAX_SEQUENCES = "pagefleet_max_num_seqs"
KV_USAGE = "pagefleet_kv_cache_usage_perc"
KV_PAGES = "pagefleet_kv_pages"
KV_PAGE_TOKENS = "pagefleet_kv_page_tokens"  # tokens of a page
KV_PAGES_FREE = "pagefleet_kv_pages_free"  # blank ones only
KV_PAGES_CACHED = "pagefleet_kv_pages_cached"
PROMPT_TOKENS = "pagefleet_prompt_tokens_total"
GENERATION_TOKENS = "pagefleet_generation_tokens_total"
PREEMPTIONS = "pagefleet_num_preemptions_total"
PREFIX_CACHE_HITS = "pagefleet_prefix_cache_hits_total"
SUCCESS, SUCCESS_REASON = "pagefleet_request_success_total", "finished_reason"  # a counter and its label
TTFT = "pagefleet_time_to_first_token_seconds"
ITL = "pagefleet_inter_token_latency_seconds"
E2E = "pagefleet_e2e_request_latency_seconds"
QUEUE_TIME = "pagefleet_request_queue_time_seconds"
STEP_SECONDS = "pagefleet_step_seconds"
SLEEPING = "pagefleet_engine_sleeping"
LORA_INFO, RUNNING_ADAPTERS = "pagefleet_lora_requests_info", "running_lora_adapters"  # an info metric and its label

SELECTOR = r'^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_][a-zA-Z0-9_]*(="[^"{}\\]*")?\})?$'
_PARTS = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([a-zA-Z_][a-zA-Z0-9_]*)(?:="([^"{}\\]*)")?\})?')
METRICS_PATH = "/metrics"
LISTS = ("finished", "failed")
# The single numbers of a metrics page, by their names in spec.engine.metrics.
NUMBERS = {
    "waiting": "Requests that wait to be computed.",
    "running": "Requests in the running batch.",
    "waitingTokens": "Tokens of the prompts that wait.",
    "maxSequences": "Requests that can be in the batch at once.",
    "kvUsage": "Share of the KV cache in use, 0 to 1.",
    "kvPages": "KV pages that the engine has in all.",
    "kvPagesFree": "KV pages that are blank: neither in use nor with a reusable prefix.",
    "kvPagesCached": "KV pages that are not in use but hold a reusable prefix. The free pages are these and kvPagesFree.",
    "tokens": "A counter of the tokens that were generated.",
    "promptTokens": "A counter of the tokens of prompts.",
    "preemptions": "A counter of the requests that were preempted.",
}
HISTOGRAMS = ("ttft", "e2e", "itl", "queue")  # of latency, by the names of the guard's signals


@dataclass(frozen=True)
class Selector:
    """`value` None with a `label`: the number is that label's value."""

    name: str
    label: str = ""
    value: str | None = None


@dataclass(frozen=True)
class EngineMetrics:
    """Selectors by what they report; counts are requests, histograms are of seconds. Fields are named as in spec.engine.metrics.

    `kvUsage` is the share of KV pages in use, `kvPages` their number, `kvPagesFree` the number of blank ones, `kvPagesCached`
    that of unused ones with a reusable prefix. `sleeping` is above 0 while the engine sleeps. `finished` counters
    together are the requests that ended, `failed` those that failed.
    """

    path: str = METRICS_PATH
    waiting: str = ""
    running: str = ""
    waitingTokens: str = ""  # noqa: N815 - the spec's name
    maxSequences: str = ""  # noqa: N815
    kvUsage: str = ""  # noqa: N815
    kvPages: str = ""  # noqa: N815
    kvPagesFree: str = ""  # noqa: N815
    kvPagesCached: str = ""  # noqa: N815
    tokens: str = ""
    promptTokens: str = ""  # noqa: N815
    preemptions: str = ""
    ttft: str = ""
    e2e: str = ""
    itl: str = ""
    queue: str = ""
    sleeping: str = ""
    finished: tuple[str, ...] = field(default=())
    failed: tuple[str, ...] = field(default=())


OURS = EngineMetrics(
    waiting=WAITING,
    running=RUNNING,
    waitingTokens=WAITING_TOKENS,
    maxSequences=MAX_SEQUENCES,
    kvPages=KV_PAGES,
    kvPagesFree=KV_PAGES_FREE,
    kvPagesCached=KV_PAGES_CACHED,
    tokens=GENERATION_TOKENS,
    promptTokens=PROMPT_TOKENS,
    preemptions=PREEMPTIONS,
    ttft=TTFT,
    e2e=E2E,
    itl=ITL,
    queue=QUEUE_TIME,
    sleeping=SLEEPING,
    finished=(SUCCESS,),
    failed=(f'{SUCCESS}{{{SUCCESS_REASON}="error"}}', f'{SUCCESS}{{{SUCCESS_REASON}="deadline"}}'),
)


# Which values of a request's `priority` an engine serves first.
HIGHER_FIRST, LOWER_FIRST = "higher", "lower"


@dataclass(frozen=True)
class Engine:
    """Where a pod's engine listens, and what its metrics are called; None: it reports nothing. `priority` is HIGHER_FIRST or
    LOWER_FIRST; "": the engine takes no priority in a request. `prefill_from` is the number of uncached prompt tokens from which
    on a prefill pod is asked; 0 for a pod that is none. `prefills_all`: a prefill pod whose decode pods compute no prompt themselves.
    """

    port: int = ENGINE_PORT
    metrics: EngineMetrics | None = OURS
    priority: str = ""
    prefill_from: int = 0
    prefills_all: bool = False


def selector(text: str) -> Selector:
    """Raises ValueError for what SELECTOR does not match."""
    match = _PARTS.fullmatch(text)
    if match is None:
        raise ValueError(f'{text!r} is not NAME, NAME{{label="value"}} or NAME{{label}}')
    return Selector(match[1], match[2] or "", match[3])


def metrics_from(raw: Mapping[str, Any]) -> EngineMetrics:
    """`spec.engine.metrics`, or the annotation's part of that name. Raises ValueError for names that cannot be read."""
    words: dict[str, Any] = {
        name: str(raw[name]) for name in EngineMetrics.__dataclass_fields__ if name in raw and name not in LISTS
    }
    if not words.get("path", METRICS_PATH).startswith("/"):
        raise ValueError(f"{words['path']!r} is not a path such as {METRICS_PATH}")
    finished, failed = (tuple(map(str, raw.get(name, ()))) for name in LISTS)
    for text in (*(value for name, value in words.items() if name != "path"), *finished, *failed):
        selector(text)
    return replace(EngineMetrics(**words), finished=finished, failed=failed)


def annotation(engine: Engine) -> str:
    """The annotation of the pods of an engine that is not ours."""
    document: dict[str, Any] = {"port": engine.port}
    if engine.metrics is not None:
        document["metrics"] = {name: value for name, value in asdict(engine.metrics).items() if value}
    if engine.priority:
        document["priority"] = engine.priority
    if engine.prefill_from:
        document["prefillFrom"] = engine.prefill_from
    if engine.prefills_all:
        document["prefillsAll"] = True
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def engine_from(annotation: str) -> Engine:
    """The engine that an annotation's text names. Total: a port or metrics that cannot be read count as not reported, so that
    a poisoned annotation hides a pod's load and never the pod."""
    try:
        document = json.loads(annotation)
        port = document["port"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Engine(metrics=None)
    if type(port) is not int or not 0 < port < 65536:
        return Engine(metrics=None)
    priority = document.get("priority")
    first = priority if priority in (HIGHER_FIRST, LOWER_FIRST) else ""
    least = document.get("prefillFrom")
    prefill_from = least if type(least) is int and least > 0 else 0
    rest = (first, prefill_from, document.get("prefillsAll") is True)
    try:
        named = document.get("metrics")
        return Engine(port, metrics_from(named) if named else None, *rest)
    except (ValueError, TypeError, AttributeError):
        return Engine(port, None, *rest)


def engine_of(pod: Mapping[str, Any]) -> Engine:
    """The engine of a pod's object: by its annotation, ours without one."""
    text = (pod["metadata"].get("annotations") or {}).get(ENGINE_ANNOTATION)
    return Engine() if text is None else engine_from(text)
