"""The systems that are measured: how each is started, and what it needs before it can be."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import peers

from cpubench import float_model, workload

MODEL = "smollm2"
LENGTH = 1024  # prompt and output tokens together
SEQUENCES = 64
BATCH = 16  # of static batching
# Our own engine's default: up to four draft tokens after the last two or three.
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3}'
PLAIN = ("--speculation", "none")
KV_TOKENS = 32768  # in vLLM's and Pagefleet's pools: room for every request of the workload at once


@dataclass(frozen=True)
class System:
    """`command` gets a free port. `missing` says what `peers.py` has to make first, if anything."""

    name: str
    what: str
    command: Callable[[int], list[str]]
    missing: Callable[[], str | None]
    ready_path: str = "/health"
    environment: dict[str, str] = field(default_factory=dict)
    streams: bool = True
    most: int | None = None  # requests of one run: the first of the workload, for a system that would take too long


def everything() -> dict[str, System]:
    """All systems by name, in the order of the table."""
    tuned = _vllm_environment()
    systems = [
        System("pagefleet", "our engine, float32", _pagefleet("none"), _needs(), "/ready"),
        System("pagefleet-int8", "our engine, int8 weights", _pagefleet("int8"), _needs(), "/ready"),
        System(
            "pagefleet-nospec", "our engine, float32, no speculation", _pagefleet("none", *PLAIN), _needs(), "/ready"
        ),
        System(
            "pagefleet-int8-nospec", "our engine, int8, no speculation", _pagefleet("int8", *PLAIN), _needs(), "/ready"
        ),
        System("vllm", "vLLM on the CPU, float32", _vllm("float32"), _needs("model", "vllm"), environment=tuned),
        System("vllm-bf16", "vLLM on the CPU, bfloat16", _vllm("bfloat16"), _needs("model", "vllm"), environment=tuned),
        System(
            "vllm-bf16-ngram",
            "vLLM on the CPU, bfloat16, prompt lookup",
            _vllm("bfloat16", "--speculative-config", NGRAM),
            _needs("model", "vllm"),
            environment=tuned,
        ),
        System("llama", "llama.cpp's server, Q4_1", _llama, _needs("llama")),
        System(
            "transformers",
            f"transformers, static batches of {BATCH}",
            _transformers,
            _needs("model"),
            streams=False,
            most=2 * BATCH,
        ),
    ]
    return {system.name: system for system in systems}


def threads() -> int:
    return len(os.sched_getaffinity(0))


def _needs(*makers: str) -> Callable[[], str | None]:
    def missing() -> str | None:
        absent = [maker for maker in makers if not peers.MAKERS[maker][0]()]
        return f"not made yet: python bench/peers.py {' '.join(absent)}" if absent else None

    return missing


def _pagefleet(quantization: str, *more: str) -> Callable[[int], list[str]]:
    def command(port: int) -> list[str]:
        return [
            str(Path(sys.executable).parent / "pagefleet-engine"), "serve",
            "--model", float_model.URI, "--served-model-name", MODEL, "--port", str(port),
            "--quantization", quantization, "--max-num-seqs", str(SEQUENCES), "--max-model-len", str(LENGTH),
            "--page-size", "16", "--num-pages", str(KV_TOKENS // 16),
            *more,
        ]  # fmt: skip

    return command


def _vllm(dtype: str, *more: str) -> Callable[[int], list[str]]:
    def command(port: int) -> list[str]:
        return [
            str(peers.vllm_python()), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(peers.float_folder()), "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype,
            "--max-num-seqs", str(SEQUENCES), "--max-model-len", str(LENGTH), "--disable-log-stats",
            *more,
        ]  # fmt: skip

    return command


def _vllm_environment() -> dict[str, str]:
    """One thread on every core: left to itself vLLM keeps a core back, and serves on one of two."""
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    preload = ":".join(str(library) for library in peers.vllm_preload())
    return {
        "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1", "LD_PRELOAD": preload,
    }  # fmt: skip


def _llama(port: int) -> list[str]:
    return [
        str(peers.llama_server()), "--model", str(peers.gguf_file()), "--alias", MODEL,
        "--host", "127.0.0.1", "--port", str(port), "--threads", str(threads()),
        "--parallel", str(SEQUENCES), "--cont-batching", "--ctx-size", str(SEQUENCES * LENGTH), "--no-webui",
    ]  # fmt: skip


def _transformers(port: int) -> list[str]:
    static = Path(workload.__file__).with_name("static.py")
    return [sys.executable, str(static), "--model", str(peers.float_folder()), "--batch", str(BATCH)]
