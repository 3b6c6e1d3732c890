"""The engine's command line from fields of the spec (docs/reference/contract/engine.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.base.accelerator import gpus, runs_cuda
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.parallel import tensor_parallel
from pagefleet_operator.domain.base.runtime import guessing
from pagefleet_operator.domain.runtimes.uris import in_pod, path_in_pod
from pagefleet_operator.domain.runtimes.volumes import API_KEYS, CHAT_TEMPLATE

DRAIN_SECONDS, LONGEST_DRAIN = 90, 1800
SLOWEST_TOKEN = 0.1  # seconds between two tokens of a stream that is still worth its wait


def flags(child: Child) -> list[str]:
    """In a fixed order; fields that are not given leave the engine its defaults."""
    engine: Mapping[str, Any] = child.snapshot.get("engine") or {}
    values = {**_model(child), **_device(child), **_engine(engine), **_server(engine)}
    written = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    if (engine.get("kvCache") or {}).get("prefixCaching") is False:
        written.append("--no-prefix-caching")
    return [*written, *_adapters(child.snapshot["model"])]


def drain_seconds(limits: Mapping[str, Any]) -> int:
    """How long a stopping replica lets its streams go on: the longest answer that is allowed at a slow pace."""
    longest = int(limits.get("outputTokens", 0))
    return min(LONGEST_DRAIN, max(DRAIN_SECONDS, math.ceil(longest * SLOWEST_TOKEN)))


def _model(child: Child) -> dict[str, Any]:
    model: Mapping[str, Any] = child.snapshot["model"]
    guesses = guessing(child.snapshot)
    draft = guesses.get("model")
    return {
        "--model": in_pod(model["source"]),
        "--served-model-name": model.get("servedName") or child.service,
        "--max-model-len": model.get("maxLength"),
        "--quantization": model.get("quantization"),
        "--speculation": (model.get("speculation") or {}).get("method"),
        "--speculation-tokens": guesses.get("tokens"),
        "--speculation-model": in_pod(draft) if draft else None,
        "--chat-template": CHAT_TEMPLATE.path if "chatTemplate" in model else None,
    }


def _device(child: Child) -> dict[str, Any]:
    count = tensor_parallel(child.snapshot) if gpus(child.snapshot) else 1
    return {
        "--device": "cuda" if runs_cuda(child.snapshot) else None,
        "--tensor-parallel-size": count if count > 1 else None,
    }


def _adapters(model: Mapping[str, Any]) -> Iterator[str]:
    for adapter in model.get("adapters") or ():
        yield f"--lora-adapter={adapter['name']}={path_in_pod(adapter['source'])}"


def _engine(engine: Mapping[str, Any]) -> dict[str, Any]:
    cache, scheduling = engine.get("kvCache") or {}, engine.get("scheduling") or {}
    return {
        "--page-size": cache.get("pageSize"),
        "--num-pages": cache.get("pages"),
        "--kv-memory-fraction": cache.get("memoryFraction"),
        "--kv-cache-dtype": cache.get("dtype"),
        "--scheduling-policy": scheduling.get("policy"),
        "--max-num-seqs": scheduling.get("maxSequences"),
        "--max-num-batched-tokens": scheduling.get("tokensPerStep"),
        "--max-chunk-tokens": scheduling.get("chunkTokens"),
        "--tool-call-parser": engine.get("toolCallParser"),
    }


def _server(engine: Mapping[str, Any]) -> dict[str, Any]:
    limits = engine.get("limits") or {}
    return {
        "--host": "0.0.0.0",
        "--port": ENGINE_PORT,
        "--api-key-file": API_KEYS.path if "apiKeySecretRef" in engine else None,
        "--max-prompt-tokens": limits.get("promptTokens"),
        "--max-output-tokens": limits.get("outputTokens"),
        "--max-queued-requests": limits.get("queued"),
        "--max-queued-tokens": limits.get("queuedTokens"),
        "--max-n": limits.get("answers"),
        "--drain-timeout": drain_seconds(limits),
    }
