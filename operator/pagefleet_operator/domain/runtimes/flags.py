"""The engine's command line from fields of the spec (docs/reference/contract/engine.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import Engine, Model, RevisionSpec
from pagefleet_operator.domain.runtimes import kv_events
from pagefleet_operator.domain.runtimes.uris import in_pod, path_in_pod
from pagefleet_operator.domain.runtimes.volumes import API_KEYS, CHAT_TEMPLATE

DRAIN_SECONDS, LONGEST_DRAIN = 90, 1800
SLOWEST_TOKEN = 0.1  # seconds between two tokens of a stream that is still worth its wait


def flags(child: Child) -> list[str]:
    """In a fixed order; fields that are not given leave the engine its defaults."""
    spec, engine = child.spec, child.spec.engine
    values = {
        **_model(child),
        **_device(spec),
        **_engine(engine),
        kv_events.FLAG: kv_events.config(child),
        **_server(child),
    }
    written = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    if engine.kv_cache.prefix_caching is False:
        written.append("--no-prefix-caching")
    return [*written, *_adapters(spec.model)]


def drain_seconds(output_tokens: int | None = None) -> int:
    """How long a stopping replica lets its streams go on: the longest answer that is allowed at a slow pace."""
    return min(LONGEST_DRAIN, max(DRAIN_SECONDS, math.ceil((output_tokens or 0) * SLOWEST_TOKEN)))


def _model(child: Child) -> dict[str, Any]:
    model, drafting = child.spec.model, child.spec.model.drafting
    return {
        "--model": in_pod(model.source, model),
        "--served-model-name": model.served_name or child.service,
        "--max-model-len": model.max_length,
        "--quantization": model.quantization,
        "--speculation": model.speculation.method or None,
        "--speculation-tokens": drafting.tokens if drafting else None,
        "--speculation-model": in_pod(drafting.model, model) if drafting and drafting.model else None,
        "--chat-template": CHAT_TEMPLATE.path if model.chat_template else None,
    }


def _device(spec: RevisionSpec) -> dict[str, Any]:
    count = spec.tensor_parallel if spec.gpus else 1
    return {
        "--device": "cuda" if spec.runs_cuda else None,
        "--tensor-parallel-size": count if count > 1 else None,
    }


def _adapters(model: Model) -> Iterator[str]:
    for adapter in model.adapters:
        yield f"--lora-adapter={adapter.name}={path_in_pod(adapter.source, model)}"


def _engine(engine: Engine) -> dict[str, Any]:
    cache, scheduling = engine.kv_cache, engine.scheduling
    return {
        "--page-size": cache.page_size,
        "--num-pages": cache.pages,
        "--kv-memory-fraction": cache.memory_fraction,
        "--kv-cache-dtype": cache.dtype,
        "--scheduling-policy": scheduling.policy,
        "--max-num-seqs": scheduling.max_sequences,
        "--max-num-batched-tokens": scheduling.tokens_per_step,
        "--max-chunk-tokens": scheduling.chunk_tokens,
        "--tool-call-parser": engine.tool_call_parser,
    }


def _server(child: Child) -> dict[str, Any]:
    engine, limits = child.spec.engine, child.spec.engine.limits
    return {
        "--host": child.address,
        "--port": ENGINE_PORT,
        "--api-key-file": API_KEYS.path if engine.api_key else None,
        "--max-prompt-tokens": limits.prompt_tokens,
        "--max-output-tokens": limits.output_tokens,
        "--max-queued-requests": limits.queued,
        "--max-queued-tokens": limits.queued_tokens,
        "--max-n": limits.answers,
        "--drain-timeout": drain_seconds(limits.output_tokens),
    }
