"""Protects the device runner's bookkeeping: seats, what changes on the device, the sizes of graphs and their padding,
the numbers that ranks are told, and how memory becomes pages."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from pagefleet_engine import device_flags
from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams, Speculation
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.main import configure
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.device.model.upload import Upload
from pagefleet_engine.runner.device.ranks.rank import check_gpu
from pagefleet_engine.runner.device.ranks.wire import decode, encode
from pagefleet_engine.runner.device.steps import memory
from pagefleet_engine.runner.device.steps.seats import Seats
from pagefleet_engine.runner.device.steps.sizes import (
    MAX_SIZE,
    MAX_VERIFIED,
    graph_size,
    graph_sizes,
    packed,
    packed_sizes,
    padded,
    verify_shape,
    verify_shapes,
)
from pagefleet_engine.runner.device.steps.step import DeviceStep, Drawing, none
from pagefleet_engine.runner.start import start
from pagefleet_kernels.launch.plan import attention_plan, split_count


def answer(name: str, tokens: int = 5, **sampling: float) -> TokenSequence:
    request = EngineRequest(name, tuple(range(tokens)), SamplingParams(4, **sampling), 0.0)  # type: ignore[arg-type]
    return TokenSequence(request, 0, b"", list(range(tokens)), runs=True)


def test_a_seat_is_kept_while_a_sequence_runs_and_only_changes_are_sent() -> None:
    seats = Seats(2, lambda _: 9)
    one, other = answer("one", temperature=0.5, top_p=0.9, top_k=7), answer("other", 3)
    one.pages, other.pages = [4, 2], [7]
    first = seats.describe([Work(one, 0, 5), Work(other, 0, 2)])
    assert first.tokens.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert first.counts.tolist() == [5, 2]
    assert first.owners.tolist() == [0]  # the other's prompt goes on
    assert first.pages.tolist() == [[0, 0, 4], [0, 1, 2], [1, 0, 7]]
    assert first.drawing.seats.tolist() == [0, 1]
    assert first.drawing.top_k.tolist() == [7, 0]
    assert first.drawing.heat[:, 0].tolist() == pytest.approx([0.5, 0.9, 0.0])
    assert first.drawing.seeds.tolist() == [9, 9]
    one.tokens.append(-1)
    one.pages.append(5)
    second = seats.describe([Work(one, 5, 1)])
    assert (second.tokens.tolist(), second.pages.tolist(), second.starts.tolist()) == ([-1], [[0, 2, 5]], [5])
    assert not len(second.drawing.seats)


def test_a_sequence_that_stopped_gives_its_seat_up_and_other_pages_are_sent_anew() -> None:
    seats = Seats(1, lambda _: 0)
    one, other = answer("one"), answer("other")
    one.pages, other.pages = [4, 2], [4, 1]
    seats.describe([Work(one, 0, 5)])
    with pytest.raises(RuntimeError, match="no seat left"):
        seats.describe([Work(other, 0, 5)])
    one.pages = [3, 2]  # preempted and admitted again meanwhile
    assert seats.describe([Work(one, 0, 5)]).pages.tolist() == [[0, 0, 3], [0, 1, 2]]
    one.runs = False
    assert seats.describe([Work(other, 0, 5)]).pages.tolist() == [[0, 0, 4], [0, 1, 1]]


def test_a_step_arrives_as_it_was_sent() -> None:
    seats = Seats(3, lambda _: -(2**63))
    one = answer("one", 9)
    one.pages = [1]
    one.draft = (7, 8)
    step = seats.describe([Work(one, 4, 7, 2)], [(1, 2)], [(0, 3, 4), (1, 5, 6)], chosen_by_host=True)
    assert (step.tokens.tolist(), step.drafts.tolist(), step.adapters.tolist()) == ([4, 5, 6, 7, 8, 7, 8], [2], [-1])
    step = replace(step, by_draft_model=True, adapters=np.array([7], np.int32))
    received = decode(encode(step))
    for field in fields(DeviceStep):
        here, there = getattr(step, field.name), getattr(received, field.name)
        if isinstance(here, Drawing):
            assert all(np.array_equal(getattr(here, one.name), getattr(there, one.name)) for one in fields(Drawing))
        else:
            assert np.array_equal(here, there)


@pytest.mark.parametrize("most", [1, 3, 8, 64, 65, 100, 256, 4096])
def test_every_batch_has_a_graph_that_wastes_little(most: int) -> None:
    sizes = graph_sizes(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == min(most, MAX_SIZE)
    for count in range(1, sizes[-1] + 1):
        size = graph_size(count, sizes)
        assert size is not None and size >= count
        assert size - count < max(count, 32)
    assert graph_size(sizes[-1] + 1, sizes) is None


def test_padding_reads_and_writes_nothing() -> None:
    numbers = [np.array(values, np.int32) for values in ([7, -1], [1, 1], [3, 9], [5, 0], [0, 1])]
    step = DeviceStep(*numbers)
    assert step.single
    columns = padded(step, 4)
    assert columns.tolist() == [[7, -1, 0, 0], [5, 0, -1, -1], [3, 9, 0, 0]]
    assert not DeviceStep(*numbers, chosen_by_host=True).single
    assert not DeviceStep(*numbers[:4], np.array([0], np.int32)).single


def drafting(*drafts: int) -> DeviceStep:
    """Make a step of a token and some draft tokens of sequences on the seats 5, 0, 3, ... with 7, 9, 11, ... tokens before."""
    every = np.arange(len(drafts), dtype=np.int32)
    counts = np.array(drafts, np.int32) + 1
    return DeviceStep(
        np.arange(counts.sum(), dtype=np.int32), counts, 7 + 2 * every, np.array([5, 0, 3, 1], np.int32)[every], every,
        drafts=counts - 1,
    )  # fmt: skip


def test_the_tokens_before_draft_tokens_and_they_are_sampled() -> None:
    step = drafting(2, 0, 1)
    tokens, sequences = step.sampled
    assert (tokens.tolist(), sequences.tolist()) == ([0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 2])
    assert step.verifies and not step.single
    # A prompt's chunk that goes on, before a sequence with draft tokens.
    mixed = DeviceStep(
        *(np.array(values, np.int32) for values in (range(8), [5, 3], [0, 4], [0, 1], [1])),
        drafts=np.array([0, 2], np.int32),
    )
    tokens, sequences = mixed.sampled
    assert (tokens.tolist(), sequences.tolist()) == ([5, 6, 7], [1, 1, 1])
    assert not mixed.verifies
    nothing = DeviceStep(none(), none(), none(), none(), none(), drafts=none())
    assert not nothing.verifies and [part.tolist() for part in nothing.sampled] == [[], []]


@pytest.mark.parametrize(("most", "drafts"), [(1, 1), (3, 4), (256, 4), (16, 16)])
def test_every_small_step_of_draft_tokens_has_a_graph(most: int, drafts: int) -> None:
    shapes = verify_shapes(most, drafts)
    for count in range(1, min(most, MAX_VERIFIED) + 1):
        for tokens in range(count + 1, count * (drafts + 1) + 1):
            shape = verify_shape(count, tokens, shapes)
            assert shape is not None and shape[0] >= count and shape[1] >= tokens
            assert shape[1] <= (drafts + 1) * max(2 * count, count + 32)
    assert verify_shape(min(most, MAX_VERIFIED) + 1, 1, shapes) is None


def test_no_graph_verifies_more_tokens_than_a_decode_graph_may_have() -> None:
    shapes = verify_shapes(256, 16)
    assert max(tokens for _, tokens in shapes) <= MAX_SIZE
    assert verify_shape(64, 128, shapes) == (64, 128)
    assert verify_shape(16, 16 * 17, shapes) == (16, 16 * 17)
    assert verify_shape(64, 64 * 17, shapes) is None


def test_what_pads_draft_tokens_belongs_to_a_sequence_without_a_seat() -> None:
    step, shape = drafting(2, 0, 1), (4, 10)
    numbers = packed(step, shape)
    own, owners, seats, starts, first = np.split(numbers, np.cumsum(packed_sizes(shape))[:-1])
    assert own.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0]
    assert owners.tolist() == [0, 0, 0, 1, 2, 2, 4, 4, 4, 4]
    assert seats.tolist() == [5, 0, 3, -1, -1]
    assert starts.tolist() == [7, 9, 11, 0, 0]
    assert first.tolist() == [0, 3, 4, 6, 6, 10]


def test_the_widest_step_has_every_draft_token() -> None:
    config = EngineConfig("m", max_num_seqs=8, max_num_batched_tokens=100, speculation=Speculation("ngram", 3))
    step = memory.widest_step(config, 1000)
    assert step.verifies and step.counts.tolist() == [4] * 8
    assert len(step.sampled[0]) == 32
    assert len(memory.widest_step(replace(config, max_num_batched_tokens=10), 1000).seats) == 3


def test_the_largest_step_spends_the_budget() -> None:
    config = EngineConfig("m", max_num_seqs=8, max_num_batched_tokens=100, max_chunk_tokens=40)
    step = memory.largest_step(config, 1000)
    assert step.counts.tolist() == [40, 40, 15, 1, 1, 1, 1, 1]
    assert len(step.tokens) == 100
    assert memory.largest_step(config, 12).counts.max() == 12


@pytest.mark.parametrize("group", [1, 4, 8, 16, 48, 71])
def test_the_varied_steps_launch_every_attention_of_a_prompt(group: int) -> None:
    """Short and long queries, each with its keys cut into splits and whole."""
    config, kv_heads, slots = EngineConfig("m", max_num_seqs=256, max_num_batched_tokens=8192), 8, 132 * 4
    launched = set()
    for step in memory.varied_steps(config, 4096, group):
        plan = attention_plan(int(step.counts.max()), group, 128)
        blocks = len(step.tokens) // max(1, plan.rows // group) + len(step.counts)
        tiles = -(-int((step.starts + step.counts).max()) // plan.tile)
        launched.add((plan, split_count(blocks * kv_heads, slots, tiles, 2) > 1))
        assert len(step.counts) <= 256 and len(step.tokens) <= 8192 and (step.counts > 1).all()
    every = {attention_plan(count, group, 128) for count in range(2, 4096)}
    assert launched == {(plan, split) for plan in every for split in (True, False)}


def test_free_memory_becomes_pages() -> None:
    config = EngineConfig("m", kv_memory_fraction=0.5)
    assert memory.pages(config, 1 << 20, 160, 100 << 20) == 50
    with pytest.raises(ModelError, match="room for 50 KV pages beside the weights; one request of 816 tokens needs 51"):
        memory.pages(config, 1 << 20, 816, 100 << 20)
    fixed = EngineConfig("m", num_pages=101)
    with pytest.raises(ModelError, match="at most 100 pages"):
        memory.pages(fixed, 1 << 20, 160, 100 << 20)
    assert memory.pages(EngineConfig("m", num_pages=100), 1 << 20, 160, 100 << 20) == 100


def test_the_hosts_memory_is_the_ranks_together() -> None:
    config = EngineConfig("m", kv_offload_memory=10 << 20)
    assert memory.host_places(config, 1 << 20, 1) == 10
    assert memory.host_places(config, 1 << 20, 4) == 2
    assert memory.host_places(EngineConfig("m"), 1 << 20, 4) == 0
    with pytest.raises(ModelError, match="holds no page: a page takes 16777216 bytes"):
        memory.host_places(config, 4 << 20, 4)


@pytest.mark.parametrize("shape", [(7,), (300, 5), (64, 64), (2, 5000), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_upload_is_the_tensor_whatever_the_buffer_holds(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    source = torch.randn(shape)
    upload = Upload(torch.device("cpu"), buffer_bytes=1024)
    assert torch.equal(upload(source, torch.empty(shape, dtype=dtype)), source.to(dtype))


def serve(*flags: str) -> EngineConfig:
    return configure(["serve", "--model=m", "--served-model-name=n", *flags]).engine


def test_a_gpu_has_sizes_of_its_own() -> None:
    config = serve("--device=cuda", "--tensor-parallel-size=2", "--kv-offload-memory=3Gi", "--quantization=fp8")
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.max_chunk_tokens) == (256, 8192, 2048)
    assert (config.tensor_parallel_size, config.kv_offload_memory, config.device) == (2, 3 << 30, "cuda")
    assert config.speculation is None
    assert serve("--device=cuda", "--speculation=ngram").speculation == Speculation("ngram")
    config = serve("--device=cpu")
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.max_chunk_tokens) == (64, 256, 128)
    assert config.long_prompt_tokens == 512
    assert serve("--device=cuda", "--max-num-batched-tokens=300").max_chunk_tokens == 300


@pytest.mark.parametrize("flag", ["--max-num-seqs", "--max-chunk-tokens"])
def test_a_step_holds_what_is_asked_for(flag: str) -> None:
    assert serve(f"{flag}=1000").max_num_batched_tokens == 1000
    assert serve(f"{flag}=100").max_num_batched_tokens == 256
    with pytest.raises(ValueError, match="--max-num-batched-tokens"):
        serve(f"{flag}=1000", "--max-num-batched-tokens=999")


def test_a_chunk_that_is_asked_for_is_of_every_prompt() -> None:
    config = serve("--max-chunk-tokens=96")
    assert (config.max_chunk_tokens, config.long_prompt_tokens) == (96, 96)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device=cpu", "--quantization=fp8"], "--quantization=fp8 is not for --device=cpu; for it: none, int8"),
        (["--device=cuda", "--quantization=int8"], "for it: none, fp8, awq"),
        (["--device=cpu", "--kv-cache-dtype=fp8"], "--kv-cache-dtype=fp8 is not for --device=cpu"),
        (["--device=cpu", "--tensor-parallel-size=2"], "--tensor-parallel-size needs --device=cuda"),
        (["--device=cpu", "--kv-offload-memory=1Gi"], "--kv-offload-memory needs --device=cuda"),
        (["--device=cuda", "--kv-offload-memory=1Gi", "--no-prefix-caching"], "does not go with --no-prefix-caching"),
        (["--device=cuda", "--kernels=native"], "--kernels=native needs --device=cpu"),
        (["--device=cuda", "--tensor-parallel-size=9"], "is more than 8 on each of --nnodes=1"),
        (["--device=cuda", "--nnodes=17"], "must be 1 to 16"),
        (["--device=cuda", "--tensor-parallel-size=3", "--nnodes=2"], "cannot be shared by --nnodes=2"),
        (["--device=cuda", "--tensor-parallel-size=4", "--nnodes=2", "--node-rank=2"], "must be 0 to 1"),
        (["--device=cuda", "--tensor-parallel-size=4", "--nnodes=2", "--node-rank=1"], "needs --master-addr"),
        (["--device=cuda", "--master-port=0"], "--master-port must be a port"),
        (["--device=cuda", "--kv-offload-memory=12Q"], "must be bytes"),
        (["--device=cuda", "--tensor-parallel-size=2", "--nnodes=2", "--lora-adapter=a=/b"], "needs --nnodes=1"),
    ],
)
def test_flags_that_do_not_go_together_are_named(flags: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        serve(*flags)


def test_a_gpu_that_is_not_there_is_named() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ModelError, match="torch sees no GPU") as raised:
        start(EngineConfig("file:///m", device="cuda"))
    assert raised.value.field == "spec.resources.accelerator"


@pytest.mark.parametrize(
    ("capability", "field", "changes"),
    [
        ((7, 5), "spec.resources.accelerator", {}),
        ((8, 0), "spec.model.quantization", {"quantization": "fp8"}),
        ((8, 6), "spec.engine.kvCache.dtype", {"kv_cache_dtype": "fp8"}),
    ],
)
def test_what_a_gpu_is_too_old_for_is_named(capability: tuple[int, int], field: str, changes: dict[str, str]) -> None:
    config = EngineConfig("file:///m", **changes)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="the GPU's compute capability is {}.{};".format(*capability)) as raised:
        check_gpu(capability, config)
    assert raised.value.field == field
    check_gpu((8, 9), config)
    check_gpu((8, 0), EngineConfig("file:///m"))


def test_auto_is_the_cpu_where_torch_has_no_cuda() -> None:
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    assert device_flags.resolved(argparse.Namespace(device="auto")) == "cpu"
