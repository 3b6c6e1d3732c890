"""Protects quantised layers on a device: AWQ stays packed and is exact, FP8 is near the floats it stands for, and the
parts of several ranks are the parts of one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine.device_engine import device_engine, finish, prompts, saved
from support.engine.formats import FORMATS, store, write
from support.engine.reference import all_logits, ask, assert_all_greedy, engine, serve

from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.checkpoint import source, weights
from pagefleet_engine.model.checkpoint.dequantise import packed
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.checkpoint.integers import Integers
from pagefleet_engine.model.checkpoint.quantization import Method, Stored
from pagefleet_engine.runner.device.model.linear import Awq, Dense, Fp8
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.model.weights import Cut, Reader
from pagefleet_engine.runner.device.ranks.rank import Rank
from pagefleet_engine.runner.device.steps.seats import Seats
from pagefleet_kernels.cpu.layout import floats
from pagefleet_kernels.kernels import REFERENCE

CPU = torch.device("cpu")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# Of the logits' norm: FP8 keeps 3 bits of mantissa, twice in each of 14 products; a wrong scale would be near 1.
NEAR = 0.25


def words(values: torch.Tensor) -> torch.Tensor:
    packed = torch.zeros(values.shape[0], values.shape[1] // 8, dtype=torch.int64)
    for nibble, column in enumerate(ORDER):
        packed |= values[:, column::8] << (4 * nibble)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def awq(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """[out, in] rounded to 4 bits in groups of 16 inputs."""
    grouped = weight.t().reshape(-1, 16, weight.shape[0])
    low, high = grouped.amin(1).clamp(max=0), grouped.amax(1).clamp(min=0)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().long()
    levels = ((grouped / scales.float()[:, None]).round().long() + zeros[:, None]).clamp(0, 15)
    return {"qweight": words(levels.flatten(0, 1)), "qzeros": words(zeros.clamp(0, 15)), "scales": scales}


def fp8(weight: torch.Tensor, rows: bool) -> dict[str, torch.Tensor]:
    most = weight.abs().amax(1, keepdim=True) if rows else weight.abs().amax().view(1)
    return {"weight": (weight / (most / 448)).to(torch.float8_e4m3fn), "weight_scale": most / 448}


def quantised(folder: Path, method: str) -> str:
    """Save a whole model whose linear layers are stored in the format of `method`."""
    uri, _ = saved(folder, vocab_size=304)
    if method == "awq":
        store(folder, AWQ, lambda _, weight: awq(weight))
    else:
        store(folder, FP8, lambda _, weight: fp8(weight, rows=method == "fp8 rows"))
    return uri


def logits(uri: str, tokens: Sequence[int], **changes: Any) -> torch.Tensor:
    """Return the logits [vocab] after the last of the tokens."""
    settings: dict[str, Any] = {"max_model_len": 256, "num_pages": 32, "kernels": "reference", **changes}
    rank = Rank(EngineConfig(uri, **settings), CPU, Shard())
    answer = TokenSequence(EngineRequest("one", tuple(tokens), SamplingParams(1), 0.0), 0, b"", list(tokens), runs=True)
    answer.pages = list(range(-(-len(tokens) // 16)))
    step = Seats(1, lambda _: 0).describe([Work(answer, 0, len(tokens))], chosen_by_host=True)
    with torch.inference_mode():
        return rank.executor.compute(step).logits[0]


@pytest.mark.parametrize("form", ["gptq", "w4a16", "w4a16 asymmetric"])
def test_four_bits_of_other_formats_stay_packed_as_awq(form: str, tmp_path: Path) -> None:
    uri, reference = write(tmp_path, form)
    asked = [list(range(3, 3 + length)) for length in (1, 15, 40)]
    served = device_engine(uri)
    assert served.description["weights"] == FORMATS[form][2]
    layer = served._rank.executor.model._layers[0]
    assert isinstance(layer.qkv, Awq)
    answers = finish(served, [ask(str(index), prompt, 6) for index, prompt in enumerate(asked)])
    assert_all_greedy(reference, [(prompt, answers[str(index), 0]) for index, prompt in enumerate(asked)])


@pytest.mark.parametrize(
    ("form", "weights"),
    [
        ("gptq 8 bits", "gptq, widened"),
        ("w8a8", "int8, widened"),
        ("fp8 channel", "fp8, packed"),
        ("fp8 block", "fp8, widened"),
        ("nvfp4", "nvfp4, widened"),
    ],
)
def test_what_is_widened_is_not_called_packed(form: str, weights: str, tmp_path: Path) -> None:
    assert device_engine(write(tmp_path, form)[0]).description["weights"] == weights


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_awq_is_token_exact(kernels: str, tmp_path: Path) -> None:
    uri = quantised(tmp_path, "awq")
    asked = [ask(str(index), prompt, 6) for index, prompt in enumerate(prompts(3))]
    expected = serve(engine(uri, kernels="reference"), asked)
    answers = finish(device_engine(uri, kernels=kernels, quantization="awq"), asked)
    assert answers == {key: one.tokens for key, one in expected.items()}


@pytest.mark.parametrize("method", ["fp8 rows", "fp8 tensor"])
def test_fp8_is_near_its_floats(method: str, tmp_path: Path) -> None:
    uri, prompt = quantised(tmp_path, method), prompts(1)[0]
    exact = _floats(uri, prompt)
    for kernels in ("auto", "reference"):
        here = logits(uri, prompt, kernels=kernels)
        assert float((here - exact).norm() / exact.norm()) < NEAR


def test_a_checkpoint_of_floats_is_rounded_when_asked(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    prompt = prompts(1)[0]
    exact, rounded = logits(uri, prompt), logits(uri, prompt, quantization="fp8")
    assert 0 < float((rounded - exact).norm() / exact.norm()) < NEAR


def test_fp8_pages_are_near_full_ones(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    prompt = prompts(1)[0]
    exact, rounded = logits(uri, prompt), logits(uri, prompt, kv_cache_dtype="fp8")
    assert 0 < float((rounded - exact).norm() / exact.norm()) < NEAR
    with pytest.raises(ModelError, match="supported: auto, fp8"):
        logits(uri, prompt, kv_cache_dtype="float16")


@pytest.mark.parametrize(("method", "kind"), [("awq", Awq), ("fp8 rows", Fp8), ("fp8 tensor", Fp8), ("none", Dense)])
def test_the_ranks_parts_make_the_whole(method: str, kind: type, tmp_path: Path) -> None:
    uri = saved(tmp_path)[0] if method == "none" else quantised(tmp_path, method)
    torch.manual_seed(1)
    x, inner = torch.randn(5, 64), torch.randn(5, 96)

    def products(shard: Shard) -> tuple[torch.Tensor, torch.Tensor]:
        config, unread = weights.load(source.resolve(uri))
        reader = Reader(unread, shard, CPU, REFERENCE, fp8=False)
        reader.embedding(config.vocab_size, 64, None)
        prefix = "model.layers.0.mlp."
        wide = reader.merged(prefix, {"gate_proj": 96, "up_proj": 96}, 64, Cut.ROWS)
        deep = reader.merged(prefix, {"down_proj": 64}, 96, Cut.COLUMNS)
        assert isinstance(wide, kind) and isinstance(deep, kind)
        return wide(x), deep(shard.cut(inner, 1))

    whole, summed = products(Shard())
    parts = [products(Shard(rank, 2)) for rank in range(2)]
    gates = torch.cat([wide[:, :48] for wide, _ in parts], dim=1)
    ups = torch.cat([wide[:, 48:] for wide, _ in parts], dim=1)
    torch.testing.assert_close(torch.cat([gates, ups], dim=1), whole)
    # FP8 rounds each rank's inputs with a scale of its own.
    torch.testing.assert_close(
        parts[0][1] + parts[1][1], summed, atol=0.2 * float(summed.abs().max()) if kind is Fp8 else 1e-4, rtol=1e-4
    )


def test_stored_fp8_becomes_floats_where_a_gpu_cannot_multiply_it(tmp_path: Path) -> None:
    uri, x = quantised(tmp_path, "fp8 rows"), torch.randn(5, 64)
    unread = weights.load(source.resolve(uri))[1]
    reader = Reader(unread, Shard(), CPU, REFERENCE, fp8=False, stored_fp8=False)
    product = reader.merged("model.layers.0.mlp.", {"gate_proj": 96, "up_proj": 96}, 64, Cut.ROWS)
    rows = {f"model.layers.0.mlp.{name}_proj.weight": 96 for name in ("gate", "up")}
    stored = floats(weights.load(source.resolve(uri))[1].take_compact(rows, 64))
    assert isinstance(product, Dense)
    torch.testing.assert_close(product(x), x @ stored.t())


def test_a_zero_point_of_16_leaves_its_neighbours_alone() -> None:
    """GPTQ's first version stores 15 for it. AWQ's words have no room for it."""
    chosen = torch.Generator().manual_seed(1)
    parts = {
        "qweight": torch.randint(-(2**31), 2**31 - 1, (8, 16), generator=chosen, dtype=torch.int32),
        "qzeros": torch.full((2, 2), -1, dtype=torch.int32), "scales": torch.ones(2, 16).half(),
    }  # fmt: skip
    layer = packed(Stored(Method.GPTQ, 32, zero_offset=1), parts)
    assert isinstance(layer, Integers) and int(layer.zeros.max()) == 16
    assert layer.awq() is None
    fewer = replace(layer, zeros=layer.zeros - 1).awq()
    assert fewer is not None and torch.equal(fewer.dequantise(), layer.dequantise() + 1)


def test_what_a_device_cannot_do_is_refused(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    with pytest.raises(ModelError, match="awq is for checkpoints that are stored so"):
        device_engine(uri, quantization="awq")
    with pytest.raises(ModelError, match="'int8' is not for a GPU"):
        device_engine(uri, quantization="int8")


def _floats(uri: str, prompt: list[int]) -> torch.Tensor:
    """Return the CPU engine's model with the same weights as floats."""
    return next(iter(all_logits(uri, [prompt], "none")))[-1]
