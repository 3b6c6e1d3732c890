"""Derives a profile from a model's size and an accelerator's data sheet. The profile states that it is not measured.

A step reads all weights once and the KV of every running sequence, and computes 2 FLOPs per weight and token. Memory
and arithmetic are taken at a share of their peak (`Accelerator.memory_share`, `.compute_share`); the two are added,
not overlapped. Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009, with the shares as assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_simulator.fleet.profile import Profile, Startup, StepTime


@dataclass(frozen=True)
class Accelerator:
    """Bytes, bytes per second, FLOP per second in the weights' type; `overhead` is the fixed time of a step, in seconds."""

    name: str
    memory: float
    bandwidth: float
    flops: float
    memory_share: float = 0.8
    compute_share: float = 0.5
    overhead: float = 0.001


@dataclass(frozen=True)
class Model:
    """`weight` and `kv` are bytes per parameter and per number of the KV cache."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head: int
    weight: float = 2.0
    kv: float = 2.0

    @property
    def kv_bytes(self) -> float:
        """Bytes of KV of one token."""
        return 2 * self.layers * self.kv_heads * self.head * self.kv


H100 = Accelerator("H100 SXM (data sheet)", memory=80e9, bandwidth=3.35e12, flops=989e12)
LLAMA_8B = Model("Llama-3.1-8B", parameters=8.0e9, layers=32, kv_heads=8, head=128)
LLAMA_70B = Model("Llama-3.1-70B", parameters=70.6e9, layers=80, kv_heads=8, head=128)


def derive(name: str, model: Model, one: Accelerator, count: int = 1, memory_fraction: float = 0.9) -> Profile:
    """A replica of `count` accelerators that share weights and KV evenly.

    Raises ValueError when the model does not fit.
    """
    bandwidth = one.bandwidth * one.memory_share * count
    flops = one.flops * one.compute_share * count
    weights = model.parameters * model.weight
    left = one.memory * count * memory_fraction - weights
    page_size = 16
    pages = int(left / (model.kv_bytes * page_size))
    if pages < 1:
        raise ValueError(f"{model.name} needs {weights / 1e9:.0f} GB, {count} x {one.name} leave nothing for KV")
    per_token = 2 * model.parameters / flops
    return Profile(
        name=name,
        step=StepTime(
            base=weights / bandwidth + one.overhead, prefill=per_token, decode=per_token, kv=model.kv_bytes / bandwidth
        ),
        pages=pages,
        page_size=page_size,
        step_tokens=2048,
        chunk_tokens=1024,
        max_sequences=256,
        accelerators=count,
        startup=Startup(schedule=3.0, pull=25.0, load=45.0, sigma=0.25, cached=0.5),
        source=(
            f"derived, not measured: roofline of {model.name} ({model.weight:g} bytes a weight) on {count} x {one.name}"
            f" at {one.memory_share:.0%} of bandwidth and {one.compute_share:.0%} of FLOPs; start-up assumed"
        ),
        machine="derived",
    )
