"""The systems that are measured: how each is started, and what it needs before it can be."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import peers

from cpubench import float_model, workload
from cpubench.made import llama
from cpubench.made.quantised import Form
from cpubench.shapes import LOADS, Shape

MODEL = "measured"  # its name in requests
LENGTH = 1024  # prompt and output tokens together
SEQUENCES = 64
BATCH = 16  # of static batching
# Our own engine's default: up to four draft tokens after the last two or three.
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3}'
PLAIN = ("--speculation", "none")
SLOTS = ("--parallel", str(SEQUENCES), "--ctx-size", str(SEQUENCES * LENGTH))
ONE_SLOT = ("--parallel", "1", "--ctx-size", str(LENGTH))


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


def everything(shape: Shape = Shape.SMOLLM2) -> dict[str, System]:
    """All systems that serve the shape by name, in the order of the table."""
    systems = [*_ours(shape), *_vllms(shape), *_llamas(shape)]
    if shape is Shape.SMOLLM2:
        what = f"transformers, static batches of {BATCH}"
        systems.append(System("transformers", what, _transformers, _needs("model"), streams=False, most=2 * BATCH))
    return {system.name: system for system in systems}


def _ours(shape: Shape) -> list[System]:
    """A model of random floats is read as its folder; the 135M model as its package's file, whose codes stay in memory."""
    small = shape is Shape.SMOLLM2
    model = float_model.URI if small else f"file://{peers.float_folder(shape)}"
    needs = _needs() if small else _needs(shape)

    def system(name: str, what: str, quantization: str, *more: str) -> System:
        return System(name, what, _pagefleet(model, shape, "--quantization", quantization, *more), needs, "/ready")

    floats = "weights as in the file" if small else "weights as floats"
    ours = [
        system("pagefleet", f"our engine, {floats}", "none"),
        system("pagefleet-int8", "our engine, int8 weights", "int8"),
        system("pagefleet-nospec", f"our engine, {floats}, no speculation", "none", *PLAIN),
        system("pagefleet-int8-nospec", "our engine, int8, no speculation", "int8", *PLAIN),
    ]
    for form in Form:
        folder = f"file://{peers.quantised_folder(shape, form)}"
        command = _pagefleet(folder, shape)
        what = f"our engine, the {form} checkpoint that vLLM reads"
        ours.append(System(f"pagefleet-{form}", what, command, _needs(f"{shape}-{form}"), "/ready"))
    q4_0 = f"file://{peers.q4_0_file(shape)}"
    for name, more in (("pagefleet-q4_0", ()), ("pagefleet-q4_0-nospec", PLAIN)):
        what = f"our engine, the Q4_0 file that llama.cpp reads{', no speculation' if more else ''}"
        command = _pagefleet(q4_0, shape, "--quantization", "int8", *more)
        ours.append(System(name, what, command, _needs(f"{shape}-q4_0"), "/ready"))
    default = System("pagefleet-default", "our engine with no flags but the model", _serve(model), needs, "/ready")
    return [*ours, default] if small else ours


def _vllms(shape: Shape) -> list[System]:
    small, tuned = shape is Shape.SMOLLM2, _vllm_environment()
    floats, float_maker = peers.float_folder(shape), "model" if small else shape

    def system(name: str, what: str, folder: Path, maker: str, *more: str) -> System:
        return System(name, f"vLLM on the CPU, {what}", _vllm(folder, *more), _needs(maker, "vllm"), environment=tuned)

    bfloat16 = ("--dtype", "bfloat16")
    vllms = [
        system("vllm", "float32", floats, float_maker, "--dtype", "float32"),
        system("vllm-bf16", "bfloat16", floats, float_maker, *bfloat16),
        system(
            "vllm-bf16-ngram", "bfloat16, prompt lookup", floats, float_maker, *bfloat16, "--speculative-config", NGRAM
        ),
    ]
    for form in Form:
        folder = peers.quantised_folder(shape, form)
        vllms.append(system(f"vllm-{form}", form.what, folder, f"{shape}-{form}", *bfloat16))
    return vllms


def _llamas(shape: Shape) -> list[System]:
    """The server in several settings; its best one counts."""
    needs, model = _needs("llama", f"{shape}-q4_0"), lambda: peers.q4_0_file(shape)
    what = "llama.cpp's server, Q4_0, repacked"
    best = [
        System("llama-q4_0", what, _llama(model, *SLOTS), needs),
        System(
            "llama-q4_0-unified", f"{what}, one KV cache for all slots", _llama(model, *SLOTS, "--kv-unified"), needs
        ),
        System("llama-q4_0-one", f"{what}, one slot", _llama(model, *ONE_SLOT), needs),
    ]
    if shape is not Shape.SMOLLM2:
        return best
    return [*best, System("llama", "llama.cpp's server, Q4_1", _llama(peers.gguf_file, *SLOTS), _needs("llama"))]


def threads() -> int:
    return len(os.sched_getaffinity(0))


def _needs(*makers: str) -> Callable[[], str | None]:
    def missing() -> str | None:
        absent = [maker for maker in makers if not peers.MAKERS[maker][0]()]
        return f"not made yet: python bench/peers.py {' '.join(absent)}" if absent else None

    return missing


def _serve(model: str, *flags: str) -> Callable[[int], list[str]]:
    def command(port: int) -> list[str]:
        return [
            str(Path(sys.executable).parent / "pagefleet-engine"), "serve",
            "--model", model, "--served-model-name", MODEL, "--port", str(port), *flags,
        ]  # fmt: skip

    return command


def _pagefleet(model: str, shape: Shape, *more: str) -> Callable[[int], list[str]]:
    return _serve(
        model, "--max-num-seqs", str(SEQUENCES), "--max-model-len", str(LENGTH), "--page-size", "16",
        "--num-pages", str(LOADS[shape].kv_tokens // 16), *more,
    )  # fmt: skip


def _vllm(folder: Path, *more: str) -> Callable[[int], list[str]]:
    def command(port: int) -> list[str]:
        return [
            str(peers.vllm_python()), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(folder), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port),
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


def _llama(model: Callable[[], Path], *slots: str) -> Callable[[int], list[str]]:
    def command(port: int) -> list[str]:
        return [
            *llama.command(peers.llama_folder(), "llama-server"), "--model", str(model()), "--alias", MODEL,
            "--host", "127.0.0.1", "--port", str(port), "--threads", str(threads()),
            "--cont-batching", "--flash-attn", "on", "--samplers", "temperature", "--no-webui", *slots,
        ]  # fmt: skip

    return command


def _transformers(port: int) -> list[str]:
    static = Path(workload.__file__).with_name("static.py")
    return [sys.executable, str(static), "--model", str(peers.float_folder()), "--batch", str(BATCH)]
