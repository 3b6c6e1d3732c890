"""Protects tensor parallelism: two ranks over gloo give the tokens of one, on one machine and on two that meet over TCP,
and a rank or a machine that dies ends the others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support import namespaces
from support.engine.device_engine import PARALLEL, adapter, device_engine, finish, prompts, saved
from support.engine.heads import CYCLE, knowing
from support.engine.reference import ask

from pagefleet_engine.core.requests import EngineConfig, SamplingParams
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.ranks.wire import Joining

PROGRAM = Path(__file__).parents[1] / "support/engine/device_rank.py"


LEADER = "127.0.0.2"  # another address than the one that a rank beside the first would use


@contextmanager
def other_node(port: int) -> Iterator[subprocess.Popen[str]]:
    """Run the second machine of two, with the command of a worker pod."""
    command = [sys.executable, "-m", "pagefleet_engine.runner.device.ranks.node", LEADER, str(port), "1", "cpu", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=gloo())
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def gloo() -> dict[str, str]:
    return {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def two_ranks(uri: str, asked: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), uri, json.dumps(asked), json.dumps(options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=gloo())


@pytest.mark.parametrize("family", PARALLEL)
def test_two_ranks_give_the_tokens_of_one(family: str, tmp_path: Path) -> None:
    uri, _ = saved(tmp_path, family)  # 301 tokens: the ranks' parts of the vocabulary differ in size
    asked = prompts(6)
    alone = finish(
        device_engine(uri, max_num_batched_tokens=48), [ask(str(i), prompt, 10) for i, prompt in enumerate(asked)]
    )
    ended = two_ranks(uri, asked)
    assert ended.returncode == 0, ended.stderr
    together = json.loads(ended.stdout.splitlines()[-1])
    assert {(name, 0): tokens for name, tokens in together.items()} == alone


def test_ranks_cannot_share_norms_of_all_heads(tmp_path: Path) -> None:
    ended = two_ranks(saved(tmp_path, "olmo2")[0], prompts(1))
    assert ended.returncode != 0
    assert "2 GPUs cannot share a olmo2 model: its norms are of all heads together" in ended.stderr


def test_two_ranks_agree_on_draws_sleep_and_what_the_host_chooses(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    asked = [
        {"tokens": prompt, "temperature": 0.8, "seed": index, **extra}
        for index, (prompt, extra) in enumerate(
            zip(prompts(4), [{}, {"frequency_penalty": 1.0}, {"prompt_logprobs": 1}, {}], strict=True)
        )
    ]
    here = device_engine(uri, max_num_batched_tokens=48)
    requests = [
        ask(str(index), one["tokens"], 10, **{name: value for name, value in one.items() if name != "tokens"})
        for index, one in enumerate(asked)
    ]
    assert isinstance(requests[0].sampling, SamplingParams)
    alone = finish(here, requests)
    ended = two_ranks(uri, asked, sleep_levels=[1, 2], num_pages=12, kv_offload_memory=1 << 20)
    assert ended.returncode == 0, ended.stderr
    together = json.loads(ended.stdout.splitlines()[-1])
    assert {(name, 0): tokens for name, tokens in together.items()} == alone


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_two_ranks_share_adapters(family: str, tmp_path: Path) -> None:
    """Of every product of a layer. A newer version is loaded while requests still use the one before it."""
    uri, _ = saved(tmp_path / "model", family)
    first, second = adapter(tmp_path / "first"), adapter(tmp_path / "second", seed=5)
    asked = prompts(5)
    names = ["one" if index % 2 else None for index in range(5)]
    requests = [
        ask(str(i), prompt, 10, adapter=name) for i, (prompt, name) in enumerate(zip(asked, names, strict=True))
    ]
    alone = finish(device_engine(uri, adapters=(("one", first),)), requests)
    newer = finish(device_engine(uri, adapters=(("one", second),)), [ask("later", asked[1], 10, adapter="one")])
    plain = finish(device_engine(uri), [ask("1", asked[1], 10)])
    assert len({tuple(tokens) for tokens in (plain["1", 0], alone["1", 0], newer["later", 0])}) == 3
    given = [{"tokens": prompt, "adapter": name} for prompt, name in zip(asked, names, strict=True)]
    ended = two_ranks(uri, given, adapters=[["one", first]], later=["one", second, asked[1]], sleep_levels=[1, 2])
    assert ended.returncode == 0, ended.stderr
    together = json.loads(ended.stdout.splitlines()[-1])
    assert {(name, 0): tokens for name, tokens in together.items()} == alone | newer


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_two_ranks_verify_draft_tokens_alike(method: str, tmp_path: Path) -> None:
    """The ranks share the draft model as they share the model."""
    uri, reference = saved(tmp_path / "model", initializer_range=0.1)
    reference.model.layers[1].mlp.down_proj.weight.data *= 0.3
    reference.save_pretrained(tmp_path / "draft")
    asked: list[dict[str, Any]] = [
        {"tokens": [*prompt, *prompt], "max_tokens": 24, "temperature": 0.7 * (index % 2), "seed": index, **extra}
        for index, (prompt, extra) in enumerate(
            zip(prompts(5, longest=20), [{}, {}, {"frequency_penalty": 1.0}, {}, {}], strict=True)
        )
    ]
    requests = [
        ask(str(index), one["tokens"], 24, **{name: one[name] for name in one if name not in ("tokens", "max_tokens")})
        for index, one in enumerate(asked)
    ]
    alone = finish(device_engine(uri, max_num_batched_tokens=48), requests)
    draft = f"file://{tmp_path / 'draft'}" if method == "draft" else None
    ended = two_ranks(uri, asked, draft=[method, draft], sleep_levels=[1, 2])
    assert ended.returncode == 0, ended.stderr
    told, together = ended.stdout.splitlines()[-2:]
    assert {(name, 0): tokens for name, tokens in json.loads(together).items()} == alone
    assert int(told.split()[0]) > 0, told


def test_two_ranks_share_a_head(tmp_path: Path) -> None:
    uri, head = knowing(tmp_path / "model")
    asked = [{"tokens": [token % CYCLE for token in prompt], "max_tokens": 24} for prompt in prompts(5, longest=20)]
    alone = finish(device_engine(uri), [ask(str(index), one["tokens"], 24) for index, one in enumerate(asked)])
    ended = two_ranks(uri, asked, draft=["eagle3", head.save(tmp_path / "head")], sleep_levels=[1, 2])
    assert ended.returncode == 0, ended.stderr
    told, together = ended.stdout.splitlines()[-2:]
    assert {(name, 0): tokens for name, tokens in json.loads(together).items()} == alone
    assert int(told.split()[0]) > 70, told  # of each four tokens behind the first, three or more are draft tokens


def test_ranks_that_cannot_share_a_draft_model_name_it(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path / "model")
    draft, _ = saved(tmp_path / "draft", num_key_value_heads=1)
    ended = two_ranks(uri, prompts(1), draft=["draft", draft])
    assert ended.returncode != 0
    assert "spec.model.speculation.model: 2 GPUs cannot share the model's kv_heads of 1" in ended.stderr


def test_the_death_of_a_rank_ends_the_engine_and_says_so(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    ended = two_ranks(uri, prompts(4), kill=True)
    assert ended.returncode != 0
    assert "ready" in ended.stdout
    assert "rank 1 of 2 ended with status -9" in ended.stderr


def test_a_rank_whose_engine_ended_before_it_had_started_ends_at_once(tmp_path: Path) -> None:
    """The kernel's signal comes only to those that have asked for it; else the rank would look for the others for minutes."""
    ours, theirs = socket.socketpair()
    joining = Joining(EngineConfig(f"file://{tmp_path}"), "cpu", 1, 2, free_port())
    command = [sys.executable, "-m", "pagefleet_engine.runner.device.ranks.worker", str(theirs.fileno())]
    ours.close()
    ended = subprocess.run(
        [*command, msgspec.json.encode(joining).decode()], pass_fds=[theirs.fileno()], timeout=120, env=gloo()
    )
    theirs.close()
    assert ended.returncode == 0


def test_two_nodes_give_the_tokens_of_one(tmp_path: Path) -> None:
    """The second starts first, as pods may, and ends by itself when the first does. Somebody else at the port is sent away."""
    uri, _ = saved(tmp_path)
    asked = prompts(6)
    alone = finish(
        device_engine(uri, max_num_batched_tokens=48), [ask(str(i), prompt, 10) for i, prompt in enumerate(asked)]
    )
    port = free_port()
    with other_node(port) as other:
        ended = two_ranks(uri, asked, nodes=2, master_port=port, sleep_levels=[1], stranger=True)
        assert ended.returncode == 0, ended.stderr
        assert other.wait(60) == 0
    assert "a connection that is no node of this model" in ended.stderr
    together = json.loads(ended.stdout.splitlines()[-1])
    assert {(name, 0): tokens for name, tokens in together.items()} == alone


# Two network namespaces with a wire between them: nothing of one machine's loopback helps the other.
NETWORKS = """
set -e
mount -t tmpfs none /run; mkdir /run/netns; ip netns add other
ip link set lo up; ip link add one type veth peer name two netns other; ip addr add 10.98.0.1/30 dev one; ip link set one up
in_other() { ip netns exec other "$@"; }
in_other ip link set lo up; in_other ip addr add 10.98.0.2/30 dev two; in_other ip link set two up
GLOO_SOCKET_IFNAME=two in_other "$1" -m pagefleet_engine.runner.device.ranks.node 10.98.0.1 29500 1 cpu 1 &
GLOO_SOCKET_IFNAME=one "$1" "$2" "$3" "$4" '{"nodes": 2, "master_port": 29500}'
wait $!
"""


@namespaces.needed("that ranks on two machines meet at the first one's address; other tests run them on one")
def test_nodes_of_two_networks_meet_at_the_first_ones_address(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    asked = prompts(4)
    alone = finish(
        device_engine(uri, max_num_batched_tokens=48), [ask(str(i), prompt, 10) for i, prompt in enumerate(asked)]
    )
    command = [
        *namespaces.unshare("--net", "--mount"),
        "bash",
        "-c",
        NETWORKS,
        "bash",
        sys.executable,
        str(PROGRAM),
        uri,
    ]
    ended = subprocess.run([*command, json.dumps(asked)], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    together = json.loads(ended.stdout.splitlines()[-1])
    assert {(name, 0): tokens for name, tokens in together.items()} == alone


def test_the_death_of_a_node_ends_the_engine_and_says_so(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    port = free_port()
    with other_node(port) as other:
        ended = two_ranks(uri, prompts(4), nodes=2, master_port=port, kill=other.pid)
    assert ended.returncode != 0
    assert "ready" in ended.stdout
    assert "node 1 of 2 is gone" in ended.stderr


def test_the_death_of_the_first_node_ends_the_other_and_its_ranks(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    port = free_port()
    with other_node(port) as other:
        two_ranks(uri, prompts(4), nodes=2, master_port=port, kill="self")
        assert other.wait(60) == 0


def test_what_the_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(ModelError, match="3 GPUs cannot share the model's heads of 4"):
        Shard(0, 3).config(_model(heads=4, kv_heads=2))
    with pytest.raises(ModelError, match="kv_heads of 2"):
        Shard(0, 4).config(_model(heads=4, kv_heads=2))


@pytest.mark.parametrize(("count", "size"), [(301, 2), (10, 4), (9, 8)])
def test_every_row_of_the_vocabulary_has_one_rank(count: int, size: int) -> None:
    bounds = [Shard(rank, size).rows(count) for rank in range(size)]
    assert [row for begin, end in bounds for row in range(begin, end)] == list(range(count))
    matrix = torch.arange(count * 8).view(count, 8)
    cut = [Shard(rank, size).cut(matrix, 1) for rank in range(size)]
    assert torch.equal(torch.cat(cut, dim=1), matrix)


def _model(heads: int, kv_heads: int) -> Any:
    from pagefleet_engine.model.checkpoint.config import ModelConfig

    return ModelConfig(
        "llama", 100, 64, 96, 2, heads, kv_heads, 16, 10000.0, 1e-6, 512, tied=True, eos_token_ids=(2,)
    )  # fmt: skip
