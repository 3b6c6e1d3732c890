"""The engine's command line takes exactly the contracted flags, with their defaults, and no abbreviations."""

from __future__ import annotations

import pytest

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.main import configure

NEEDED = ["serve", "--model=file:///m", "--served-model-name=m"]


def test_defaults_are_the_contracts() -> None:
    config = configure([*NEEDED, "--host", "0.0.0.0", "--port", "8000"])
    assert config.engine == EngineConfig(model="file:///m")
    assert (config.port, config.drain_timeout, config.limits.queued) == (8000, 90.0, 256)
    assert config.limits.prompt_tokens is None and config.limits.output_tokens is None


def test_every_contracted_flag_reaches_the_engine() -> None:
    flags = [
        "--max-model-len=512", "--quantization=int8", "--page-size=32", "--num-pages=64", "--kv-memory-fraction=0.5",
        "--max-num-seqs=2", "--max-num-batched-tokens=128", "--batching=static", "--max-prompt-tokens=100",
        "--max-output-tokens=200", "--max-queued-requests=7", "--drain-timeout=30",
    ]  # fmt: skip
    config = configure([*NEEDED, *flags])
    assert config.engine == EngineConfig("file:///m", "int8", 512, 32, 64, 0.5, 2, 128, "static")
    limits = config.limits
    assert (limits.prompt_tokens, limits.output_tokens, limits.queued, config.drain_timeout) == (100, 200, 7, 30.0)


@pytest.mark.parametrize(
    "flags",
    [
        ["--max-num-s=4"], ["--page-size=17"], ["--num-pages=0"], ["--kv-memory-fraction=0"],
        ["--kv-memory-fraction=nan"], ["--drain-timeout=inf"],
        ["--drain-timeout=-1"], ["--port=0"], ["--port=70000"], ["--max-num-seqs=two"],
        ["--quantization=fp8"], ["--unknown"], ["extra"], ["--max-model-len=100", "--max-output-tokens=101"],
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_name(flags: list[str]) -> None:
    with pytest.raises(ValueError, match=flags[-1].partition("=")[0]):
        configure([*NEEDED, *flags])


def test_static_batching_may_have_more_sequences_than_budget() -> None:
    configure([*NEEDED, "--batching=static", "--max-num-batched-tokens=8"])
