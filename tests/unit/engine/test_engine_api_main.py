"""The engine's command line takes exactly the contracted flags, with their defaults, and no abbreviations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagefleet_engine.api.parsing.registry import Style
from pagefleet_engine.api.planning.limits import Rules
from pagefleet_engine.core.requests import EngineConfig, Speculation
from pagefleet_engine.main import configure

NEEDED = ["serve", "--model=file:///m", "--served-model-name=m"]


def test_defaults_are_the_contracts() -> None:
    config = configure([*NEEDED, "--host", "0.0.0.0", "--port", "8000"])
    assert config.engine == EngineConfig(model="file:///m", long_prompt_tokens=512, speculation=Speculation("ngram"))
    assert (config.port, config.drain_timeout, config.limits.queued) == (8000, 90.0, 256)
    assert config.limits.prompt_tokens is None and config.limits.output_tokens is None


def test_every_contracted_flag_reaches_the_engine() -> None:
    flags = [
        "--max-model-len=512", "--quantization=int8", "--page-size=32", "--num-pages=64", "--kv-memory-fraction=0.5",
        "--max-num-seqs=2", "--max-num-batched-tokens=128", "--batching=static", "--max-prompt-tokens=100",
        "--max-output-tokens=200", "--max-queued-requests=7", "--drain-timeout=30",
    ]  # fmt: skip
    config = configure([*NEEDED, *flags])
    assert config.engine == EngineConfig(
        "file:///m", "int8", 512, 32, 64, 0.5, max_num_seqs=2, max_num_batched_tokens=128, long_prompt_tokens=512,
        batching="static",
    )  # fmt: skip
    limits = config.limits
    assert (limits.prompt_tokens, limits.output_tokens, limits.queued, config.drain_timeout) == (100, 200, 7, 30.0)


def test_every_flag_beyond_the_contract_reaches_its_place(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    config = configure([
        *NEEDED, "--served-model-name", "b", "c", "--kv-cache-dtype=float16", "--max-chunk-tokens=64",
        "--no-prefix-caching", "--scheduling-policy=fcfs", "--speculation=draft", "--speculation-tokens=3",
        "--speculation-model=file:///d", "--lora-adapter=x=/a/b=c", "--lora-adapter", "y=/y", "--max-adapters=2",
        "--kernels=reference", "--model-impl=transformers", "--chat-template=t.jinja", "--tool-call-parser=llama3_json", "--allow-runtime-adapters",
        f"--adapter-root={tmp_path}", f"--api-key-file={keys}", "--max-queued-tokens=9", "--max-n=3",
        "--trust-request-chat-template", "--write-timeout=2",
    ])  # fmt: skip
    assert config.engine == EngineConfig(
        "file:///m", kv_cache_dtype="float16", max_chunk_tokens=64, long_prompt_tokens=64, prefix_caching=False,
        scheduling_policy="fcfs",
        speculation=Speculation("draft", 3, "file:///d"), adapters=(("x", "/a/b=c"), ("y", "/y")), max_adapters=2,
        kernels="reference", model_impl="transformers",
    )  # fmt: skip
    assert config.served_model_names == ("m", "b", "c") and config.served_model_name == "m"
    assert (config.chat_template, config.adapter_root, config.write_timeout) == (Path("t.jinja"), tmp_path, 2.0)
    assert (config.limits.queued_tokens, config.limits.n) == (9, 3)
    assert config.rules == Rules(priorities=False, request_templates=True, tool_style=Style.LLAMA3_JSON)
    assert config.keys.needed and config.keys.valid("one")


def test_kv_events_are_published_only_where_that_is_asked_for() -> None:
    def publishes(**keys: object) -> bool:
        events = configure([*NEEDED, f"--kv-events-config={json.dumps(keys)}"]).engine.kv_events_config
        return events is not None and events.publishes

    assert configure(NEEDED).engine.kv_events_config is None
    assert not publishes() and not publishes(endpoint="tcp://*:5557")
    assert publishes(enable_kv_cache_events=True) and publishes(enable_kv_cache_events=True, publisher="zmq")
    assert not publishes(enable_kv_cache_events=True, publisher="null")


def test_speculation_without_a_model_looks_up_its_own_text() -> None:
    assert configure([*NEEDED, "--speculation=ngram"]).engine.speculation == Speculation("ngram")


def test_speculation_is_the_cpus_default_where_batches_are_continuous() -> None:
    assert configure(NEEDED).engine.speculation == Speculation("ngram")
    assert configure([*NEEDED, "--speculation=none"]).engine.speculation is None
    assert configure([*NEEDED, "--batching=static"]).engine.speculation is None
    assert configure([*NEEDED, "--device=cuda"]).engine.speculation is None
    assert configure([*NEEDED, "--device=cuda", "--speculation=none"]).engine.speculation is None


@pytest.mark.parametrize(
    "flags",
    [
        ["--served-model-name=m"], ["--served-model-name="], ["--lora-adapter=x"], ["--lora-adapter=x=/1", "--lora-adapter=x=/2"],
        ["--lora-adapter=m=/1"], ["--lora-adapter=x=/1", "--lora-adapter=y=/2", "--max-adapters=1"],
        ["--allow-runtime-adapters"], ["--adapter-root=/"], ["--allow-runtime-adapters", "--adapter-root=/no/such"],
        ["--speculation-tokens=2"], ["--speculation=none", "--speculation-tokens=2"],
        ["--speculation-model=x"], ["--speculation=ngram", "--speculation-model=x"],
        ["--speculation=draft"], ["--speculation=eagle3"],
        ["--speculation=ngram", "--speculation-tokens=17"],
        ["--batching=static", "--speculation=ngram"], ["--max-chunk-tokens=257", "--max-num-batched-tokens=256"], ["--max-n=17"], ["--write-timeout=0"],
        ["--api-key-file=/no/such"], ["--kv-cache-dtype=int4"], ["--scheduling-policy=lifo"], ["--kernels=fast"],
        ["--page-size=8"], ["--tool-call-parser=none"], ["--max-queued-tokens=0"],
        ["--max-num-s=4"], ["--page-size=17"], ["--num-pages=0"], ["--kv-memory-fraction=0"],
        ["--kv-memory-fraction=nan"], ["--drain-timeout=inf"],
        ["--drain-timeout=-1"], ["--port=0"], ["--port=70000"], ["--max-num-seqs=two"],
        ["--kv-events-config={"], ["--kv-events-config=[]"], ['--kv-events-config={"port":1}'], ['--kv-events-config={"hwm":0}'],
        ['--kv-events-config={"publisher":"kafka"}'], ['--kv-events-config={"endpoint":"5557"}'],
        ["--no-prefix-caching", '--kv-events-config={"enable_kv_cache_events":true}'],
        ["--quantization=fp8"], ["--unknown"], ["extra"], ["--max-model-len=100", "--max-output-tokens=101"],
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_name(flags: list[str]) -> None:
    with pytest.raises(ValueError, match=flags[-1].partition("=")[0]):
        configure([*NEEDED, *flags])


def test_static_batching_may_have_more_sequences_than_budget() -> None:
    configure([*NEEDED, "--batching=static", "--max-num-batched-tokens=8"])
