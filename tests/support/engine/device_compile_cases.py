"""Steps of the device runner in the shapes of real models, whose launches are compiled and not run. No test here.

Run as a program it works like kernels_compile.py. One layer stands for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.weights import Weights
from pagefleet_engine.runner.device.model.model import DeviceDecoder
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.model.weights import Reader
from pagefleet_engine.runner.device.steps.executor import Executor
from pagefleet_engine.runner.device.steps.host_pages import IN, OUT, HostPages
from pagefleet_engine.runner.device.steps.preparation import Preparation
from pagefleet_engine.runner.device.steps.sizes import packed, padded
from pagefleet_engine.runner.device.steps.state import State
from pagefleet_engine.runner.device.steps.step import DeviceStep, Drawing
from pagefleet_kernels.build_inputs import Inputs, build_inputs_reference
from pagefleet_kernels.kernels import TRITON, Kernels

CPU, MAX_POSITIONS, PAGE, PAGES = torch.device("cpu"), 8192, 16, 8
LLAMA = ModelConfig("llama", 512, 4096, 14336, 1, 32, 8, 128, 5e5, 1e-5, MAX_POSITIONS, tied=True, eos_token_ids=(2,))
QWEN = replace(LLAMA, kind="qwen3", hidden_size=1024, intermediate_size=3072, heads=16, qk_norm=True)
MISTRAL = replace(LLAMA, kind="mistral", hidden_size=1024, intermediate_size=1024, sliding_window=4096,
                  sliding_layers=(True,))  # fmt: skip


def inputs(*given: Any) -> Inputs:
    """Compile the launch, and compute its result by the reference, because the result is used as indexes."""
    TRITON.build_inputs(*given)
    return build_inputs_reference(*given)


COMPILED: Kernels = replace(TRITON, build_inputs=inputs)


def executor(model: ModelConfig, fp8: bool, kv: torch.dtype) -> Executor:
    """Make an executor with weights of bfloat16 and any values."""
    shapes = {
        "model.embed_tokens.weight": (model.vocab_size, model.hidden_size),
        "model.norm.weight": (model.hidden_size,),
    }
    layer, hidden, inner = "model.layers.0.", model.hidden_size, model.intermediate_size
    shapes |= {f"{layer}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    shapes |= {f"{layer}self_attn.{name}_proj.weight": (rows, hidden)
               for name, rows in (("q", model.q_size), ("k", model.kv_size), ("v", model.kv_size))}  # fmt: skip
    shapes |= {
        f"{layer}self_attn.o_proj.weight": (hidden, model.q_size),
        f"{layer}mlp.down_proj.weight": (hidden, inner),
    }
    shapes |= {f"{layer}mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    if model.qk_norm:
        shapes |= {f"{layer}self_attn.{name}_norm.weight": (model.head_dim,) for name in "qk"}
    readers = {name: partial(_weights, shape) for name, shape in shapes.items()}
    reader = Reader(Weights(readers, "random"), Shard(), CPU, COMPILED, fp8=fp8)
    made = DeviceDecoder(model, reader, Shard(), MAX_POSITIONS, COMPILED, CPU, None)
    pool = made.pool(PAGES, PAGE, kv)
    state = State(64, MAX_POSITIONS // PAGE, PAGE, CPU, COMPILED)
    prepare = Preparation([pool], state, COMPILED, [HostPages(pool, 2, COMPILED)])
    return Executor(made, pool, prepare, COMPILED, MAX_POSITIONS)


def _weights(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def numbers(*values: int) -> Any:
    return np.array(values, np.int32)


def step(*counts: int) -> DeviceStep:
    """Make a step of a prompt's chunk or a token of each sequence. A page is copied, one goes to the host, one comes back."""
    seats = np.arange(len(counts), dtype=np.int32)
    return DeviceStep(
        np.zeros(sum(counts), np.int32), numbers(*counts), np.zeros(len(counts), np.int32), seats, seats,
        drawing=Drawing(seats, np.zeros_like(seats), np.ones((3, len(counts)), np.float32),
                        np.zeros(len(counts), np.int64)),
        copies=numbers(1, 2).reshape(1, 2), moves=numbers(OUT, 3, 0, IN, 4, 1).reshape(2, 3),
    )  # fmt: skip


@torch.inference_mode()
def decode(model: ModelConfig, size: int, fp8: bool = False, kv: torch.dtype = torch.bfloat16) -> None:
    one = step(*[1] * size)
    executor(model, fp8, kv).single(torch.from_numpy(padded(one, size)))


@torch.inference_mode()
def verify(model: ModelConfig, size: int, drafts: int) -> None:
    """Compile a step of draft tokens in the shape that its graph has, and launched singly."""
    one = replace(step(*[1 + drafts] * size), drafts=np.full(size, drafts, np.int32))
    made, shape = executor(model, False, torch.bfloat16), (size, size * (1 + drafts))
    made.verify(torch.from_numpy(packed(one, shape)), shape)
    made.launch(one)


@torch.inference_mode()
def mixed(model: ModelConfig, fp8: bool = False, kv: torch.dtype = torch.bfloat16) -> None:
    executor(model, fp8, kv).launch(step(70, 1, 40))


CASES: dict[str, Callable[[], object]] = {
    "llama decode 1": partial(decode, LLAMA, 1),
    "llama decode 64": partial(decode, LLAMA, 64),
    "llama verify 8 x 4": partial(verify, LLAMA, 8, 4),
    "llama mixed": partial(mixed, LLAMA),
    "llama fp8 decode 64": partial(decode, LLAMA, 64, fp8=True),
    "llama fp8 mixed": partial(mixed, LLAMA, fp8=True),
    "qwen3 decode 64": partial(decode, QWEN, 64),
    "qwen3 mixed, fp8 pages": partial(mixed, QWEN, kv=torch.float8_e4m3fn),
    "mistral mixed": partial(mixed, MISTRAL),
}

if __name__ == "__main__":
    from support.engine.kernels_compile import main

    main(CASES)
