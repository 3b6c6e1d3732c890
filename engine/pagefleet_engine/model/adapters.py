"""LoRA adapters (Hu et al., ICLR 2022) as PEFT saves them, added to a layer's products for the rows that ask for them.

An adapter costs nothing for the other rows; several may be in one batch. Reads adapter_config.json and
adapter_model.safetensors; never unpickles anything.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from pagefleet_engine.model.checkpoint import arrange
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_kernels.cpu import Linear, Operations

NAME = re.compile(
    r"(?:base_model\.model\.)?model\.layers\.(\d+)\.(?:self_attn\.(?=[qkvo]_)|mlp\.(?=gate_|up_|down_))(\w+)"
    r"\.lora_(A|B)(?:\.\w+)?\.weight"
)
PRODUCTS = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "out", "gate_proj": "gate_up", "up_proj": "gate_up",
    "down_proj": "down",
}  # fmt: skip
# Options of PEFT's that change the arithmetic, with the values that are computed here.
COMPUTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "bias": ("none", None), "use_dora": (False, None), "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []), "rank_pattern": (None, {}), "alpha_pattern": (None, {}), "lora_bias": (False, None),
    "layer_replication": (None,), "alora_invocation_tokens": (None, []),
    # Other ways to begin, such as PiSSA, change the weights that the adapter is for.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}  # fmt: skip
MAX_RANK = 512


@dataclass(frozen=True)
class Part:
    """Adds (x down^T) up^T to columns begin: of a product. down [rank, in], up [out, rank], the scale in it."""

    down: torch.Tensor
    up: torch.Tensor
    begin: int

    def change(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.down.t()) @ self.up.t()


@dataclass(frozen=True)
class PreparedPart:
    """A part as the CPU's operations compute it: a row's change depends on that row only."""

    down: Linear
    up: Linear
    begin: int

    def change(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x))


P = TypeVar("P", Part, PreparedPart)


@dataclass(frozen=True)
class Adapter(Generic[P]):
    """The parts of one adapter by (layer, product)."""

    parts: dict[tuple[int, str], tuple[P, ...]]


def prepared(adapter: Adapter[Part], operations: Operations) -> Adapter[PreparedPart]:
    """Return the adapter for the CPU."""

    def linear(weight: torch.Tensor) -> Linear:
        return operations.linear(weight, None, int8=False)

    return Adapter({
        place: tuple(PreparedPart(linear(part.down), linear(part.up), part.begin) for part in parts)
        for place, parts in adapter.parts.items()
    })  # fmt: skip


def load(folder: Path, model: ModelConfig) -> Adapter[Part]:
    """Read an adapter. Raises ValueError that states what is wrong with the folder."""
    try:
        settings: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
        rank, alpha = int(settings["r"]), float(settings.get("lora_alpha", 8))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{folder / 'adapter_config.json'} cannot be used: {error!r}") from error
    for name, allowed in COMPUTED.items():
        if settings.get(name, allowed[0]) not in allowed:
            raise ValueError(f"adapter_config.json: {name} {settings[name]!r} is not supported")
    if not 1 <= rank <= MAX_RANK:
        raise ValueError(f"adapter_config.json: r must be 1 to {MAX_RANK}, not {rank}")
    if not math.isfinite(alpha):
        raise ValueError(f"adapter_config.json: lora_alpha must be a number, not {alpha}")
    scale = alpha / rank**0.5 if settings.get("use_rslora") else alpha / rank
    halves = _halves(folder / "adapter_model.safetensors", model)
    parts: dict[tuple[int, str], list[Part]] = {}
    for (layer, module), (down, up) in sorted(halves.items()):
        begin, rows, columns = _place(module, model)
        experts = model.options.experts
        if experts is not None and experts.within(layer) and PRODUCTS[module] in ("gate_up", "down"):
            raise ValueError(f"layer {layer}, {module}: adapters of experts are not supported")
        if down is None or up is None or down.shape != (rank, columns) or up.shape != (rows, rank):
            raise ValueError(f"layer {layer}, {module}: lora_A must be [{rank}, {columns}] and lora_B [{rows}, {rank}]")
        if not (down.isfinite().all() and up.isfinite().all()):
            raise ValueError(f"layer {layer}, {module}: holds numbers that are not finite")
        order = arrange.rotated_rows(f"model.layers.{layer}.self_attn.{module}.weight", model)
        up = up if order is None else up[order]
        parts.setdefault((layer, PRODUCTS[module]), []).append(Part(down, up * scale, begin))
    return Adapter({place: tuple(layer_parts) for place, layer_parts in parts.items()})


def _halves(path: Path, model: ModelConfig) -> dict[tuple[int, str], tuple[torch.Tensor | None, torch.Tensor | None]]:
    halves: dict[tuple[int, str], tuple[torch.Tensor | None, torch.Tensor | None]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                match = NAME.fullmatch(name)
                if not match or match[2] not in PRODUCTS or int(match[1]) >= model.layers:
                    raise ValueError(f"{path.name}: {name} is not a part of this model that an adapter can change")
                place = int(match[1]), match[2]
                down, up = halves.get(place, (None, None))
                tensor = file.get_tensor(name).float().contiguous()
                halves[place] = (tensor, up) if match[3] == "A" else (down, tensor)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not halves:
        raise ValueError(f"{path.name} holds no LoRA weights")
    return halves


def _place(module: str, model: ModelConfig) -> tuple[int, int, int]:
    """First column within the merged product, rows and columns of a module's own weight."""
    hidden, inner, q, kv = model.hidden_size, model.intermediate_size, model.q_size, model.kv_size
    return {
        "q_proj": (0, q, hidden), "k_proj": (q, kv, hidden), "v_proj": (q + kv, kv, hidden), "o_proj": (0, hidden, q),
        "gate_proj": (0, inner, hidden), "up_proj": (inner, inner, hidden), "down_proj": (0, hidden, inner),
    }[module]  # fmt: skip


class Applied:
    """The adapters of one batch: which rows [n] each of them changes."""

    def __init__(self, rows: Sequence[tuple[Adapter[Any], torch.Tensor]]) -> None:
        self._rows = rows

    def add(self, layer: int, product: str, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the adapters' products with x [n, in] to y [n, out], in place."""
        for adapter, rows in self._rows:
            for part in adapter.parts.get((layer, product), ()):
                change = part.change(x[rows])
                y[rows, part.begin : part.begin + change.shape[1]] += change
