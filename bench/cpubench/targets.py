"""The targets of engine_cpu.py as data, and their verdicts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cpubench.shapes import Shape

VLLMS = ("vllm", "vllm-bf16", "vllm-bf16-ngram", "vllm-w8a8", "vllm-awq")
LLAMAS = ("llama-q4_0", "llama-q4_0-unified", "llama-q4_0-one")  # the server in its settings
GENERATION = "llama-bench, generation"
SPEED, GAP, READY, MEMORY = "tokens_per_s", "itl_p95", "ready_s", "rss_mib"
GIGABYTE = 1e9 / 2**20  # in MiB


@dataclass(frozen=True)
class Target:
    """A number of the fastest of `ours`, over that of the fastest of `theirs` where there are any. limit: None for a ratio that is
    shown and not judged. most: the limit is the largest allowed value (times, memory), otherwise the least (tokens/s)."""

    name: str
    number: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...] = ()
    limit: float | None = None
    most: bool = False


@dataclass(frozen=True)
class Ratio:
    """A target with its value, which is None when one of the two was not measured."""

    name: str
    value: float | None
    limit: float | None
    most: bool = False
    unit: str = "x"

    @property
    def missed(self) -> bool:
        if self.value is None or self.limit is None:
            return False
        return self.value > self.limit if self.most else self.value < self.limit

    @property
    def target(self) -> str:
        return f"at {'most' if self.most else 'least'} {self.limit:.1f}{self.unit}"


def _of_int8(limit: float) -> tuple[Target, ...]:
    """Throughput must not be bought with streams that falter: the p95 between tokens is judged like the tokens/s."""
    judged = []
    for ours in ("pagefleet-int8", "pagefleet-int8-nospec"):
        judged += [
            Target(f"tokens/s, {ours} / the fastest of vLLM's", SPEED, (ours,), VLLMS, limit),
            Target(f"p95 between tokens, {ours} / the fastest of vLLM's", GAP, (ours,), VLLMS, 1.0, most=True),
        ]
    return (
        *judged,
        Target("tokens/s, pagefleet-int8 / llama.cpp's server (Q4_0)", SPEED, ("pagefleet-int8",), LLAMAS, 1.0),
        Target("seconds until pagefleet-int8 is ready", READY, ("pagefleet-int8",), (), 5.0, most=True),
        Target("prompt lookup on / off, tokens/s of int8", SPEED, ("pagefleet-int8",), ("pagefleet-int8-nospec",)),
        Target("prompt lookup on / off, tokens/s without int8", SPEED, ("pagefleet",), ("pagefleet-nospec",)),
    )


AT_ONCE: Mapping[Shape, tuple[Target, ...]] = {
    Shape.SMOLLM2: (
        *_of_int8(2.2),
        Target("tokens/s, pagefleet / vllm (both float32)", SPEED, ("pagefleet",), ("vllm",), 1.5),
        Target("p95 between tokens, pagefleet / vllm (both float32)", GAP, ("pagefleet",), ("vllm",), 1.0, most=True),
        Target("tokens/s, pagefleet / transformers, static batches", SPEED, ("pagefleet",), ("transformers",), 5.0),
        Target("MiB of pagefleet-default", MEMORY, ("pagefleet-default",), (), 1.5 * GIGABYTE, most=True),
        Target("seconds until pagefleet-default is ready", READY, ("pagefleet-default",), (), 5.0, most=True),
    ),
    Shape.QWEN_06: _of_int8(1.3),
    Shape.QWEN_17: _of_int8(1.3),
}
SINGLE = (
    Target("one stream, no speculation / the best of llama.cpp's", SPEED,
           ("pagefleet-nospec", "pagefleet-int8-nospec", "pagefleet-q4_0-nospec"), (*LLAMAS, GENERATION), 1.2),
    Target("one stream, prompt lookup / the best of llama.cpp's", SPEED,
           ("pagefleet", "pagefleet-int8", "pagefleet-q4_0"), (*LLAMAS, GENERATION), 1.2),
)  # fmt: skip


def ratios(middle: Mapping[str, object], targets: tuple[Target, ...]) -> list[Ratio]:
    """Hold medians by system, which have the numbers as attributes, against the targets."""
    return [_ratio(middle, target) for target in targets]


def _ratio(middle: Mapping[str, object], target: Target) -> Ratio:
    ours, theirs = _fastest(middle, target.ours), _fastest(middle, target.theirs)
    value = None
    if ours is not None and not target.theirs:
        value = float(getattr(ours, target.number))
    elif ours is not None and theirs is not None:
        value = getattr(ours, target.number) / getattr(theirs, target.number)
    return Ratio(target.name, value, target.limit, target.most, "x" if target.theirs else "")


def _fastest(middle: Mapping[str, object], names: tuple[str, ...]) -> object | None:
    known = [middle[name] for name in names if name in middle]
    return max(known, key=lambda run: float(getattr(run, SPEED)), default=None)
