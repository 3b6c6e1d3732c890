"""Slows rotary frequencies down for contexts longer than those of the first training. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError

TYPES = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class Scaling:
    """`divisors` [head_dim / 2] of the frequencies, empty: all 1. `scale` multiplies cos and sin.

    `positions`: the context that the scaling reaches, 0 when it is not stated. `long`, where there are any, are the
    divisors of a context of more than `original` positions.
    """

    divisors: tuple[float, ...] = ()
    scale: float = 1.0
    positions: int = 0
    long: tuple[float, ...] = ()
    original: int = 0


def from_parameters(
    parameters: Mapping[str, Any], head_dim: int, theta: float, max_position: int, original: int | None = None
) -> Scaling:
    """Read config.json's `rope_parameters` (transformers 5) or `rope_scaling` (before it).

    `max_position` stands in for a missing `original_max_position_embeddings`; `original`, config.json's own entry of
    that name, goes before both, as in transformers. Raises ModelError for unsupported settings, KeyError,
    TypeError or ValueError for a damaged entry.
    """
    first = int(original or parameters.get("original_max_position_embeddings") or max_position)
    match parameters.get("rope_type") or parameters.get("type") or "default":
        case "default":
            return Scaling()
        case "linear":
            return Scaling((_positive(parameters["factor"]),) * (head_dim // 2))
        case "llama3":
            low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
            return Scaling(llama3_divisors(head_dim, theta, _positive(parameters["factor"]), low, high, first))
        case "yarn":
            factor = _positive(parameters.get("factor") or max_position / first)
            divisors = yarn_divisors(
                head_dim, theta, factor, first,
                fast=float(parameters.get("beta_fast") or 32),
                slow=float(parameters.get("beta_slow") or 1),
                truncate=bool(parameters.get("truncate", True)),
            )  # fmt: skip
            return Scaling(divisors, _yarn_scale(parameters, factor), int(first * factor))
        case "longrope":
            factor = _positive(parameters.get("factor") or max_position / first)
            short, long = (
                tuple(_positive(one) for one in parameters[name]) for name in ("short_factor", "long_factor")
            )
            if not len(short) == len(long) == head_dim // 2:
                raise ValueError(
                    f"short_factor and long_factor have {len(short)} and {len(long)} of {head_dim // 2} entries"
                )
            scale = parameters.get("attention_factor")
            if scale is None:
                scale = math.sqrt(1 + math.log(factor) / math.log(first)) if factor > 1 else 1.0
            return Scaling(short, float(scale), 0, long, first)
        case other:
            raise ModelError(SOURCE, f"rope scaling {other!r} is not supported; supported: {', '.join(TYPES)}")


def llama3_divisors(
    head_dim: int, theta: float, factor: float, low: float, high: float, original: int
) -> tuple[float, ...]:
    """Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones unchanged, those between blended.

    `low` and `high` are the numbers of turns within `original` positions that bound the blend.
    """
    divisors = []
    for pair in range(0, head_dim, 2):
        turns = original / (2 * math.pi * theta ** (pair / head_dim))
        if turns < low:
            divisors.append(factor)
        elif turns > high:
            divisors.append(1.0)
        else:
            smooth = (turns - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(divisors)


def yarn_divisors(
    head_dim: int, theta: float, factor: float, original: int, fast: float = 32, slow: float = 1, truncate: bool = True
) -> tuple[float, ...]:
    """YaRN (Peng et al., 2023, section 3.2): pairs that turn more than `fast` times within `original` positions keep
    their frequency, those below `slow` turns are divided by `factor`, a linear ramp over the pairs lies between.

    `truncate` widens the ramp to whole pairs; transformers and llama.cpp do that unless a model says otherwise.
    """

    def pair_of(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(fast), pair_of(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = [min(max((pair - low) / (high - low), 0.0), 1.0) for pair in range(head_dim // 2)]
    return tuple(1 / (stretched / factor + (1 - stretched)) for stretched in ramp)


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's attention temperature for a context `factor` times as long, on cos and sin each (section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn_scale(parameters: Mapping[str, Any], factor: float) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)
    mscale, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and all_dims:
        return yarn_scale(factor, float(mscale)) / yarn_scale(factor, float(all_dims))
    return yarn_scale(factor)


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"rope scaling factor {value!r} is not a positive number")
    return number
