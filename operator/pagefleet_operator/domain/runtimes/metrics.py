"""What an engine's /metrics page calls the numbers that we read. It travels as a pod annotation, so that operator and
gateway read the same names (gateway: engines.py). Pure: names only, reads no page.

A number is named by a selector: NAME (all its series summed up), NAME{label="value"} (only those with that label), or
NAME{label} (the number that stands in that label, as in an info metric). An empty selector: the engine does not tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

ANNOTATION = "pagefleet.io/engine"
SELECTOR = r'^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_][a-zA-Z0-9_]*(="[^"{}\\]*")?\})?$'
_PARTS = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([a-zA-Z_][a-zA-Z0-9_]*)(?:="([^"{}\\]*)")?\})?')
DEFAULT_PORT = 8000
# How many pages an engine counts as that tells only what share of them is in use: hundredths of a percent.
NOMINAL_PAGES = 10_000
LISTS = ("finished", "failed")
# The single numbers of a metrics page, by their names in spec.engine.metrics.
NUMBERS = {
    "waiting": "Requests that wait.",
    "running": "Requests in the batch.",
    "waitingTokens": "Tokens of the prompts that wait.",
    "kvUsage": "Share of the KV cache in use, 0 to 1.",
    "kvPages": "KV pages in all.",
    "kvPagesFree": "KV pages that are free.",
    "kvPagesCached": "KV pages that are free but hold a reusable prefix, beside kvPagesFree.",
    "tokens": "Counter of generated tokens.",
    "preemptions": "Counter of preemptions.",
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
    """Selectors by what they tell; counts are requests, histograms are of seconds. Fields are named as in spec.engine.metrics.

    `kvUsage` is the share of KV pages in use, `kvPages` how many there are; `kvPagesFree` and `kvPagesCached` (free ones
    with a reusable prefix) count. `finished` counters together are the requests that ended, `failed` those that failed.
    """

    path: str = "/metrics"
    waiting: str = ""
    running: str = ""
    waitingTokens: str = ""  # noqa: N815 - the spec's name
    kvUsage: str = ""  # noqa: N815
    kvPages: str = ""  # noqa: N815
    kvPagesFree: str = ""  # noqa: N815
    kvPagesCached: str = ""  # noqa: N815
    tokens: str = ""
    preemptions: str = ""
    ttft: str = ""
    e2e: str = ""
    itl: str = ""
    queue: str = ""
    finished: tuple[str, ...] = field(default=())
    failed: tuple[str, ...] = field(default=())


OURS = EngineMetrics(
    waiting="pagefleet_num_requests_waiting",
    running="pagefleet_num_requests_running",
    waitingTokens="pagefleet_num_tokens_waiting",
    kvPages="pagefleet_kv_pages",
    kvPagesFree="pagefleet_kv_pages_free",
    kvPagesCached="pagefleet_kv_pages_cached",
    tokens="pagefleet_generation_tokens_total",
    preemptions="pagefleet_num_preemptions_total",
    ttft="pagefleet_time_to_first_token_seconds",
    e2e="pagefleet_e2e_request_latency_seconds",
    itl="pagefleet_inter_token_latency_seconds",
    queue="pagefleet_request_queue_time_seconds",
    finished=("pagefleet_request_success_total",),
    failed=(
        'pagefleet_request_success_total{finished_reason="error"}',
        'pagefleet_request_success_total{finished_reason="deadline"}',
    ),
)


@dataclass(frozen=True)
class Engine:
    """Where a pod's engine listens, and what its metrics are called; None: it tells nothing."""

    port: int = DEFAULT_PORT
    metrics: EngineMetrics | None = OURS


def selector(text: str) -> Selector:
    """Raises ValueError for what SELECTOR does not match."""
    found = _PARTS.fullmatch(text)
    if found is None:
        raise ValueError(f'{text!r} is not NAME, NAME{{label="value"}} or NAME{{label}}')
    return Selector(found[1], found[2] or "", found[3])


def metrics_from(raw: Mapping[str, Any]) -> EngineMetrics:
    """`spec.engine.metrics`, or the annotation's part of that name. Raises ValueError for names that cannot be read."""
    words: dict[str, Any] = {
        name: str(raw[name]) for name in EngineMetrics.__dataclass_fields__ if name in raw and name not in LISTS
    }
    finished, failed = (tuple(map(str, raw.get(name, ()))) for name in LISTS)
    for text in (*(value for name, value in words.items() if name != "path"), *finished, *failed):
        selector(text)
    return replace(EngineMetrics(**words), finished=finished, failed=failed)


def written(engine: Engine) -> str:
    """The annotation of the pods of an engine that is not ours."""
    document: dict[str, Any] = {"port": engine.port}
    if engine.metrics is not None:
        document["metrics"] = {name: value for name, value in asdict(engine.metrics).items() if value}
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def engine_of(pod: Mapping[str, Any]) -> Engine:
    """What a pod's annotation says; ours without one; an annotation that cannot be read tells nothing."""
    text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION)
    if text is None:
        return Engine()
    try:
        document = json.loads(text)
        found = document.get("metrics")
        return Engine(int(document["port"]), metrics_from(found) if found else None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Engine(metrics=None)
