"""Plans the load of a benchmark: arrivals of a Poisson process, prompt and output lengths from lognormals. Pure.

The profile's JSON is the contract of the load-test step (docs/reference/contract/operator.md).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

# Common English words that are one token in the vocabularies of today's models.
WORDS = [
    "time",
    "people",
    "way",
    "water",
    "day",
    "part",
    "sound",
    "work",
    "place",
    "year",
    "back",
    "thing",
    "name",
    "sentence",
    "man",
    "line",
    "boy",
    "farm",
    "end",
    "men",
    "land",
    "home",
    "hand",
    "picture",
    "air",
    "animal",
    "house",
    "page",
    "letter",
    "point",
    "mother",
    "answer",
    "study",
    "learn",
    "world",
    "food",
    "sun",
    "thought",
    "head",
    "story",
    "city",
]


class ProfileError(ValueError):
    """The profile cannot be used; the message names the field."""


@dataclass(frozen=True)
class Lengths:
    """A lognormal of tokens: `median`, `sigma` of the logarithm, cut off at `max`. sigma 0: always the median."""

    median: float
    sigma: float
    max: int


@dataclass(frozen=True)
class Profile:
    """`rate` is requests per second. `temperature` None: the server's default."""

    requests: int = 200
    rate: float = 5.0
    prompt_tokens: Lengths = Lengths(96, 0.8, 512)
    output_tokens: Lengths = Lengths(64, 0.8, 256)
    seed: int = 0
    temperature: float | None = None


@dataclass(frozen=True)
class Planned:
    """One request before it is sent. `at`: seconds after the start at which it is meant to be sent."""

    at: float
    prompt: str
    prompt_tokens: int
    output_tokens: int
    temperature: float | None = None


def parse(text: str) -> Profile:
    """Read a profile from JSON. Fields that are left out have their defaults. Raises ProfileError."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ProfileError(f"the profile is not JSON: {error}") from error
    fields = {"requests": "requests", "rate": "rate", "seed": "seed", "temperature": "temperature"}
    lengths = {"promptTokens": "prompt_tokens", "outputTokens": "output_tokens"}
    known = {**fields, **lengths}
    if not isinstance(document, dict) or set(document) - set(known):
        raise ProfileError(f"the profile must be a JSON object with fields of {', '.join(known)}")
    default = Profile()
    values = {known[key]: value for key, value in document.items()}
    for key, name in lengths.items():
        if key in document:
            values[name] = _lengths(key, document[key], getattr(default, name))
    return checked(replace(default, **values))


def checked(profile: Profile) -> Profile:
    """Return the profile unchanged. Raises ProfileError that names the field and its limits."""
    _whole("requests", profile.requests, 1, 10_000_000)
    _whole("seed", profile.seed, 0, 2**63)
    if not _number(profile.rate) or not 0 < profile.rate <= 100_000:
        raise ProfileError(f"rate must be requests per second above 0, at most 100000, not {profile.rate!r}")
    if profile.temperature is not None and not (_number(profile.temperature) and 0 <= profile.temperature <= 2):
        raise ProfileError(f"temperature must be between 0 and 2, not {profile.temperature!r}")
    for name, lengths in (("promptTokens", profile.prompt_tokens), ("outputTokens", profile.output_tokens)):
        _whole(f"{name}.max", lengths.max, 1, 10_000_000)
        if not _number(lengths.median) or not 1 <= lengths.median <= lengths.max:
            raise ProfileError(
                f"{name}.median must be between 1 and {name}.max ({lengths.max}), not {lengths.median!r}"
            )
        if not _number(lengths.sigma) or not 0 <= lengths.sigma <= 5:
            raise ProfileError(f"{name}.sigma must be between 0 and 5, not {lengths.sigma!r}")
    return profile


def dump(profile: Profile) -> dict[str, Any]:
    """The profile in the form of its JSON."""
    sides = {"promptTokens": profile.prompt_tokens, "outputTokens": profile.output_tokens}
    shapes = {key: {"median": one.median, "sigma": one.sigma, "max": one.max} for key, one in sides.items()}
    given = {} if profile.temperature is None else {"temperature": profile.temperature}
    return {"requests": profile.requests, "rate": profile.rate, **shapes, "seed": profile.seed, **given}


def plan(profile: Profile) -> list[Planned]:
    """All requests in the order in which they are sent; the same for the same profile."""
    source, at, planned = random.Random(profile.seed), 0.0, []  # noqa: S311 - a load, not secrets
    for _ in range(profile.requests):
        at += source.expovariate(profile.rate)
        prompt, output = draw(source, profile.prompt_tokens), draw(source, profile.output_tokens)
        planned.append(Planned(at, text(source, prompt), prompt, output, profile.temperature))
    return planned


def draw(source: random.Random, lengths: Lengths) -> int:
    """One length in tokens: values above the maximum are drawn again, not piled up on it (a spike there is no lognormal)."""
    for _ in range(1000):
        length = round(source.lognormvariate(math.log(lengths.median), lengths.sigma))
        if length <= lengths.max:
            return max(1, length)
    return lengths.max


def text(source: random.Random, tokens: int) -> str:
    """About `tokens` tokens. No two begin alike, so that a prefix cache cannot answer for the engine."""
    return " ".join(source.choice(WORDS) for _ in range(tokens))


def _lengths(name: str, raw: object, default: Lengths) -> Lengths:
    if not isinstance(raw, Mapping) or set(raw) - {"median", "sigma", "max"}:
        raise ProfileError(f"{name} must be an object with fields of median, sigma, max")
    return replace(default, **raw)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ProfileError(f"{name} must be a whole number between {low} and {high}, not {value!r}")
