"""Protects what the picker reads from a body (size, prefix) and from an engine's metrics."""

from __future__ import annotations

import json

import pytest

from pagefleet_gateway.cluster.readings import Reading, reading_in
from pagefleet_gateway.picking.prompts.request_cost import (
    BLOCK_BYTES,
    DEFAULT_OUTPUT_TOKENS,
    MAX_BLOCKS,
    MAX_OUTPUT_TOKENS,
    RequestCost,
    block_hashes,
    block_tokens,
    request_cost,
)


def cost_of(**document: object) -> RequestCost:
    return request_cost(json.dumps(document).encode())


def test_the_size_is_the_texts_bytes_and_the_limit_on_the_answer() -> None:
    assert cost_of(model="m", prompt="x" * 400, max_tokens=7).tokens == 107
    assert cost_of(prompt="é" * 200).prompt_tokens == 100
    assert cost_of(prompt="").output_tokens == DEFAULT_OUTPUT_TOKENS
    assert cost_of(prompt="", max_tokens=10**9).output_tokens == MAX_OUTPUT_TOKENS
    assert (
        cost_of(prompt="", max_tokens=9, max_completion_tokens=3).output_tokens == 9
    )  # engines differ in which they read
    assert cost_of(prompt="", max_tokens=-1).output_tokens == DEFAULT_OUTPUT_TOKENS


def test_a_conversation_that_goes_on_begins_with_the_same_blocks() -> None:
    system = {"role": "system", "content": "s" * 600}
    first = cost_of(model="m", messages=[system, {"role": "user", "content": "one"}])
    longer = cost_of(
        model="m",
        messages=[system, {"role": "user", "content": "one"}, {"role": "assistant", "content": "y" * BLOCK_BYTES}],
    )
    assert len(first.blocks) == 2 and longer.blocks[:2] == first.blocks
    assert cost_of(model="lora", messages=[system]).blocks != cost_of(model="m", messages=[system]).blocks
    assert cost_of(model="m", messages=[system], tools=[{"type": "function"}]).blocks != first.blocks
    parts = [{"type": "text", "text": "s" * 600}]
    assert len(cost_of(model="m", messages=[{"role": "user", "content": parts}]).blocks) == 2


def test_a_huge_prompt_has_a_bounded_number_of_blocks() -> None:
    assert len(cost_of(prompt="x" * (MAX_BLOCKS + 9) * BLOCK_BYTES).blocks) == MAX_BLOCKS


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[1]", b"[" * 100_000, b"\xff", b'{"messages": 3}', b'{"messages": [null, {}]}'],
)
def test_a_body_that_is_no_request_has_a_size_and_no_prefix(body: bytes) -> None:
    cost = request_cost(body)
    assert cost.blocks == () and cost.tokens > 0


def test_lone_surrogates_are_hashed_too() -> None:
    assert len(request_cost(b'{"model": "\\ud800", "prompt": "' + b"\\ud800" * 100 + b'"}').blocks) == 1


def test_an_engines_metrics_under_both_names() -> None:
    ours = b'# HELP x\npagefleet_num_requests_running{model_name="m"} 2.0\npagefleet_kv_cache_usage_perc 0.5\n'
    assert reading_in(ours) == Reading(running=2.0, kv_usage=0.5)
    theirs = (
        b'vllm:num_requests_waiting{engine="0"} 1.0\nvllm:num_requests_waiting{engine="1"} 2.0\n'
        b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="fr,de",waiting_lora_adapters=""} 1.0\n'
    )
    assert reading_in(theirs) == Reading(waiting=3.0, adapters=frozenset({"fr", "de"}))
    assert reading_in(b"something_else 1\n") is None
    assert reading_in(b"pagefleet_num_requests_running 1e+-1\n") is None


def test_long_prompts_have_few_hashes_and_what_they_share_is_counted_to_the_last_large_block() -> None:
    text = "".join(f"{number:07} " for number in range(64_000)).encode()  # 128,000 tokens
    blocks = block_hashes(text, "m")
    assert len(blocks) == 256 + (len(text) - 256 * 256) // 4096
    assert block_tokens(len(blocks)) > 127_000 and block_tokens(256) == 16_384 and block_tokens(3) == 192
    other = block_hashes(text[:300_000] + b"?" + text[300_001:], "m")
    same = sum(one == two for one, two in zip(blocks, other, strict=True))
    assert blocks[:same] == other[:same] and 300_000 - 4096 <= block_tokens(same) * 4 <= 300_000
