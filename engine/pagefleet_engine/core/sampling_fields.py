"""The sampling fields of a request: one entry each, with type, bounds, default and effect. Pure.

Names and ranges are OpenAI's, and vLLM's for the fields that OpenAI does not have. The API's validation and its OpenAPI
document, the API's Parameters and the engine's SamplingParams read this list. A new field that changes logits is an entry
here and its line in runner/common/sampling.py (`Sampler.adjust`, for the CPU and for GPUs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

MAX_TEMPERATURE, MAX_PENALTY = 2, 2
# vLLM allows any repetition_penalty above 0; one near 0 divides logits beyond float32.
MIN_REPETITION, MAX_REPETITION = 0.01, 2
MAX_TOP_K = 2**31 - 1  # the operations have 32 bits; -1 and 0 mean "all"
MAX_BIAS, MAX_BIASES = 100, 300
MAX_STOP_TOKENS, MAX_LOGPROBS = 128, 20
ENTRY = "sampling"  # of a dataclass field's metadata


class Kind(StrEnum):
    """The JSON value: `BIASES` is an object of token ids with a number each."""

    NUMBER = "number"
    INTEGER = "integer"
    FLAG = "flag"
    TOKEN_IDS = "ids"  # noqa: S105 - no password
    BIASES = "biases"


class Effect(StrEnum):
    """The effect of a field: on the draw from the logits, the logits' values, which tokens are allowed, the answer's end, or
    what is reported beside the tokens."""

    DRAW = "draw"
    LOGITS = "logits"
    MASK = "mask"
    END = "end"
    REPORT = "report"


@dataclass(frozen=True)
class Entry:
    """`low` to `high` bound a number, of `BIASES` each of them; with `above`, `low` itself is refused. `most` bounds a
    list's or an object's length. `absent` is the value of a request without the field."""

    kind: Kind
    effect: Effect
    low: float = 0
    high: float = 0
    above: bool = False
    most: int = 0
    absent: Any = None


def _entry(
    default: Any, kind: Kind, effect: Effect, low: float = 0, high: float = 0, *, above: bool = False, most: int = 0,
    absent: Any = None,
) -> Any:  # fmt: skip
    entry = Entry(kind, effect, low, high, above, most, default if absent is None else absent)
    return field(default=default, metadata={ENTRY: entry})


@dataclass(frozen=True, kw_only=True)
class SamplingFields:
    """`temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off.

    A `seed` fixes the draws of a request whatever else is in its batch: they are keyed on (seed, index, position).
    Penalties and `logit_bias` (token, bias) change logits as OpenAI's and vLLM's do. `prompt_logprobs` asks for that many
    most likely tokens beside each prompt token but the first.
    """

    temperature: float = _entry(0.0, Kind.NUMBER, Effect.DRAW, 0, MAX_TEMPERATURE, absent=1.0)
    top_p: float = _entry(1.0, Kind.NUMBER, Effect.DRAW, 0, 1, above=True)
    top_k: int = _entry(0, Kind.INTEGER, Effect.DRAW, -1, MAX_TOP_K)
    min_p: float = _entry(0.0, Kind.NUMBER, Effect.DRAW, 0, 1)
    seed: int | None = _entry(None, Kind.INTEGER, Effect.DRAW, -(2**63), 2**63 - 1)
    stop_token_ids: tuple[int, ...] = _entry((), Kind.TOKEN_IDS, Effect.END, most=MAX_STOP_TOKENS)
    ignore_eos: bool = _entry(False, Kind.FLAG, Effect.END)
    min_tokens: int = _entry(0, Kind.INTEGER, Effect.MASK, 0, 2**31)
    presence_penalty: float = _entry(0.0, Kind.NUMBER, Effect.LOGITS, -MAX_PENALTY, MAX_PENALTY)
    frequency_penalty: float = _entry(0.0, Kind.NUMBER, Effect.LOGITS, -MAX_PENALTY, MAX_PENALTY)
    repetition_penalty: float = _entry(1.0, Kind.NUMBER, Effect.LOGITS, MIN_REPETITION, MAX_REPETITION)
    logit_bias: tuple[tuple[int, float], ...] = _entry(
        (), Kind.BIASES, Effect.LOGITS, -MAX_BIAS, MAX_BIAS, most=MAX_BIASES
    )
    prompt_logprobs: int | None = _entry(None, Kind.INTEGER, Effect.REPORT, 0, MAX_LOGPROBS)

    @property
    def moves_logits(self) -> bool:
        """Whether a field changes logits by more than forbidding tokens."""
        return bool(_moving(self) != _UNMOVED)

    @property
    def shapes_logits(self) -> bool:
        """Whether a field changes logits or forbids tokens."""
        return bool(_shaping(self) != _UNSHAPED)


def entries() -> dict[str, Entry]:
    """All sampling fields by name, in their order."""
    return {one.name: one.metadata[ENTRY] for one in fields(SamplingFields)}


def _fields(*effects: Effect) -> tuple[Callable[[SamplingFields], Any], Any]:
    """Reads the fields with these effects at once, which takes a tenth of a loop; and what they are by default."""
    read = attrgetter(*(one.name for one in fields(SamplingFields) if one.metadata[ENTRY].effect in effects))
    return read, read(SamplingFields())


_moving, _UNMOVED = _fields(Effect.LOGITS)
_shaping, _UNSHAPED = _fields(Effect.LOGITS, Effect.MASK)
