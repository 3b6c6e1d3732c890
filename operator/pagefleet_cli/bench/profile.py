"""Plans the load of a benchmark: arrivals of a Poisson process, prompt and output lengths from distributions. Pure.

The profile's JSON is the contract of the load-test step (docs/reference/contract/operator.md).
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagefleet_contract.endpoints import ENDPOINTS

MAX_RATE = 100_000  # requests per second
MOST = 10_000_000  # of requests, of tokens, and of seconds
# Common English words that are one token in the vocabularies of today's models.
WORDS = [
    "time", "people", "way", "water", "day", "part", "sound", "work", "place", "year", "back", "thing",
    "name", "sentence", "man", "line", "boy", "farm", "end", "men", "land", "home", "hand", "picture",
    "air", "animal", "house", "page", "letter", "point", "mother", "answer", "study", "learn", "world", "food",
    "sun", "thought", "head", "story", "city",
]  # fmt: skip
PLACES = range(len(WORDS))


class ProfileError(ValueError):
    """The profile cannot be used; the message names the field."""


@dataclass(frozen=True)
class Lengths:
    """A lognormal of tokens: `median`, `sigma` of the logarithm, cut off at `max`. sigma 0: always the median."""

    median: float
    sigma: float
    max: int


@dataclass(frozen=True)
class Spread:
    """Lengths in tokens as other load generators draw them, clamped to `min` .. `max`.

    `distribution`: normal, uniform between the limits, fixed (always the mean), or a lognormal of this mean and standard deviation
    that begins at `min`.
    """

    distribution: str
    mean: float
    std_dev: float
    min: int
    max: int


DISTRIBUTIONS = ("normal", "lognormal", "uniform", "fixed")


@dataclass(frozen=True)
class Stage:
    """A part of the load: `rate` requests per second for `seconds`."""

    rate: float
    seconds: float

    @property
    def requests(self) -> int:
        return int(self.rate * self.seconds + 1e-9)


@dataclass(frozen=True)
class Prefix:
    """Beginnings that prompts share: `count` of them, `tokens` long each."""

    count: int
    tokens: int


@dataclass(frozen=True)
class Profile:
    """`rate` is requests per second. `temperature` None: the server's default. `stages`, when there are any, say the number and the times
    of the requests in place of `requests` and `rate` (which then are their sum and mean), with `pause` seconds between two of them.
    `endpoints` are checked before the load, by their paths.
    """

    requests: int = 200
    rate: float = 5.0
    prompt_tokens: Lengths | Spread = Lengths(96, 0.8, 512)
    output_tokens: Lengths | Spread = Lengths(64, 0.8, 256)
    seed: int = 0
    temperature: float | None = None
    stages: tuple[Stage, ...] = ()
    pause: float = 0.0
    prefix: Prefix | None = None
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """One request before it is sent. `at`: seconds after the start at which it is meant to be sent. `words`, after those of `shared`, are
    the places of the prompt's words in WORDS: a fifth of the text's size, so that long loads fit into the load test's small pod."""

    at: float
    words: bytes
    prompt_tokens: int
    output_tokens: int
    temperature: float | None = None
    shared: bytes = b""

    @property
    def prompt(self) -> str:
        return " ".join([WORDS[place] for part in (self.shared, self.words) for place in part])


def parse(text: str) -> Profile:
    """Read a profile from JSON. Fields that are left out have their defaults. Raises ProfileError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"the profile is not JSON: {error}") from error
    fields = {"requests": "requests", "rate": "rate", "seed": "seed", "temperature": "temperature"}
    lengths = {"promptTokens": "prompt_tokens", "outputTokens": "output_tokens"}
    known = {**fields, **lengths, "stages": "stages", "pause": "pause", "prefix": "prefix", "endpoints": "endpoints"}
    if not isinstance(document, dict) or set(document) - set(known):
        raise ProfileError(f"the profile must be a JSON object with fields of {', '.join(known)}")
    default = Profile()
    values = {known[key]: value for key, value in document.items()}
    for key, name in lengths.items():
        if key in document:
            values[name] = _lengths(key, document[key], getattr(default, name))
    if "stages" in document:
        values["stages"] = _stages(document["stages"])
        if {"requests", "rate"} & set(document):
            raise ProfileError("stages cannot be given together with requests or rate, which follow from them")
    if "endpoints" in document:
        values["endpoints"] = _endpoints(document["endpoints"])
    if "prefix" in document:
        values["prefix"] = _prefix(document["prefix"])
    return checked(staged(replace(default, **values)))


def staged(profile: Profile) -> Profile:
    """The profile with the number of requests and the mean rate of its stages, if it has any."""
    if not profile.stages or not all(map(_is_possible, profile.stages)):
        return profile
    seconds = sum(stage.seconds for stage in profile.stages)
    requests = sum(stage.requests for stage in profile.stages)
    return replace(profile, requests=requests, rate=requests / seconds) if requests else profile


def _is_possible(stage: Stage) -> bool:
    return all(map(is_number, (stage.rate, stage.seconds))) and stage.rate <= MAX_RATE and 0 < stage.seconds <= MOST


def checked(profile: Profile) -> Profile:
    """Return the profile unchanged. Raises ProfileError that names the field and its limits."""
    _check_stages(profile)
    _whole("requests", profile.requests, 1, MOST)
    _whole("seed", profile.seed, 0, 2**63)
    if not is_number(profile.rate) or not 0 < profile.rate <= MAX_RATE:
        raise ProfileError(f"rate must be requests per second above 0, at most {MAX_RATE}, not {profile.rate!r}")
    if profile.temperature is not None and not (is_number(profile.temperature) and 0 <= profile.temperature <= 2):
        raise ProfileError(f"temperature must be between 0 and 2, not {profile.temperature!r}")
    for name, lengths in (("promptTokens", profile.prompt_tokens), ("outputTokens", profile.output_tokens)):
        _whole(f"{name}.max", lengths.max, 1, MOST)
        if isinstance(lengths, Spread):
            _check_spread(name, lengths)
            continue
        if not is_number(lengths.median) or not 1 <= lengths.median <= lengths.max:
            raise ProfileError(
                f"{name}.median must be between 1 and {name}.max ({lengths.max}), not {lengths.median!r}"
            )
        if not is_number(lengths.sigma) or not 0 <= lengths.sigma <= 5:
            raise ProfileError(f"{name}.sigma must be between 0 and 5, not {lengths.sigma!r}")
    return profile


def _check_stages(profile: Profile) -> None:
    for index, stage in enumerate(profile.stages):
        if not is_number(stage.rate) or not 0 < stage.rate <= MAX_RATE:
            raise ProfileError(f"stages[{index}].rate must be above 0, at most {MAX_RATE}, not {stage.rate!r}")
        if not is_number(stage.seconds) or not 0 < stage.seconds <= MOST or not stage.requests:
            raise ProfileError(
                f"stages[{index}].seconds must be long enough for one request, at most {MOST}, not {stage.seconds!r}"
            )
    if not is_number(profile.pause) or not 0 <= profile.pause <= 86_400:
        raise ProfileError(f"pause must be seconds between 0 and 86400, not {profile.pause!r}")
    if profile.prefix:
        _whole("prefix.count", profile.prefix.count, 1, 1_000_000)
        _whole("prefix.tokens", profile.prefix.tokens, 0, MOST)


def _check_spread(name: str, lengths: Spread) -> None:
    _whole(f"{name}.min", lengths.min, 1, lengths.max)
    if lengths.distribution not in DISTRIBUTIONS:
        raise ProfileError(
            f"{name}.distribution must be one of {', '.join(DISTRIBUTIONS)}, not {lengths.distribution!r}"
        )
    if not is_number(lengths.std_dev) or not 0 <= lengths.std_dev <= MOST:
        raise ProfileError(f"{name}.stdDev must be between 0 and {MOST}, not {lengths.std_dev!r}")
    if not is_number(lengths.mean) or not lengths.min <= lengths.mean <= lengths.max:
        raise ProfileError(f"{name}.mean must be between {name}.min and {name}.max, not {lengths.mean!r}")


def _endpoints(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(path, str) and path in ENDPOINTS for path in raw):
        raise ProfileError(f"endpoints must be a list of paths among {', '.join(ENDPOINTS)}, not {raw!r}")
    return tuple(raw)


def dump(profile: Profile) -> dict[str, Any]:
    """The profile in the form of its JSON."""
    sides = {"promptTokens": profile.prompt_tokens, "outputTokens": profile.output_tokens}
    given: dict[str, Any] = {} if profile.temperature is None else {"temperature": profile.temperature}
    if profile.prefix:
        given["prefix"] = {"count": profile.prefix.count, "tokens": profile.prefix.tokens}
    if profile.endpoints:
        given["endpoints"] = list(profile.endpoints)
    shapes = {key: _shape(one) for key, one in sides.items()}
    if profile.stages:
        stages = [{"rate": stage.rate, "seconds": stage.seconds} for stage in profile.stages]
        return {"stages": stages, "pause": profile.pause, **shapes, "seed": profile.seed, **given}
    return {"requests": profile.requests, "rate": profile.rate, **shapes, "seed": profile.seed, **given}


def _shape(one: Lengths | Spread) -> dict[str, Any]:
    if isinstance(one, Lengths):
        return {"median": one.median, "sigma": one.sigma, "max": one.max}
    return {
        "distribution": one.distribution, "mean": one.mean, "stdDev": one.std_dev, "min": one.min, "max": one.max,
    }  # fmt: skip


def plan(profile: Profile) -> list[Planned]:
    """All requests in the order in which they are sent; the same for the same profile."""
    source, planned = random.Random(profile.seed), []  # noqa: S311 - a load, not secrets
    own = random.Random(f"prefix {profile.seed}")  # noqa: S311 - apart, so that a prefix changes no other number
    shared = [text(own, profile.prefix.tokens) for _ in range(profile.prefix.count)] if profile.prefix else []
    for at in _arrivals(source, profile):
        prompt, output = draw(source, profile.prompt_tokens), draw(source, profile.output_tokens)
        words, prefix = text(source, prompt), b""
        if profile.prefix and profile.prefix.tokens:
            prefix, prompt = own.choice(shared), prompt + profile.prefix.tokens
        planned.append(Planned(at, words, prompt, output, profile.temperature, prefix))
    return planned


def _arrivals(source: random.Random, profile: Profile) -> Iterator[float]:
    """The intended starts, ascending. A stage has its number of requests at independent uniform times, which is a Poisson process of
    which that number is known."""
    at = 0.0
    if not profile.stages:
        for _ in range(profile.requests):
            at += source.expovariate(profile.rate)
            yield at
    for stage in profile.stages:
        yield from sorted(at + source.uniform(0, stage.seconds) for _ in range(stage.requests))
        at += stage.seconds + profile.pause


def stage_of(profile: Profile, at: float) -> int:
    """The index of the stage to which an intended start belongs."""
    for index, stage in enumerate(profile.stages):
        if at <= stage.seconds:
            return index
        at -= stage.seconds + profile.pause
    return max(0, len(profile.stages) - 1)


def draw(source: random.Random, lengths: Lengths | Spread) -> int:
    """One length in tokens: a lognormal's values above the maximum are drawn again, not piled up on it (a spike there is no lognormal)."""
    if isinstance(lengths, Spread):
        return min(lengths.max, max(lengths.min, round(_spread(source, lengths))))
    for _ in range(1000):
        length = round(source.lognormvariate(math.log(lengths.median), lengths.sigma))
        if length <= lengths.max:
            return max(1, length)
    return lengths.max


def text(source: random.Random, tokens: int) -> bytes:
    """Places in WORDS for about `tokens` tokens. No two begin alike, so that a prefix cache cannot answer for the engine."""
    return bytes(source.choice(PLACES) for _ in range(tokens))


def _spread(source: random.Random, lengths: Spread) -> float:
    match lengths.distribution:
        case "normal":
            return source.gauss(lengths.mean, lengths.std_dev)
        case "uniform":
            return source.uniform(lengths.min, lengths.max)
        case "lognormal":
            mean = max(lengths.mean - lengths.min, 1.0)
            variance = math.log(1 + (lengths.std_dev / mean) ** 2)
            return lengths.min + source.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
        case _:
            return lengths.mean


def _lengths(name: str, raw: object, default: Lengths) -> Lengths | Spread:
    if isinstance(raw, Mapping) and "distribution" in raw:
        values = _fields(name, raw, ("distribution", "mean", "stdDev", "min", "max"))
        return Spread(
            values["distribution"],
            values.get("mean", 0),
            values.get("stdDev", 0),
            values.get("min", 1),
            values.get("max", 0),
        )
    return replace(default, **_fields(name, raw, ("median", "sigma", "max")))


def _fields(name: str, raw: object, known: Sequence[str]) -> dict[str, Any]:
    if not isinstance(raw, Mapping) or set(raw) - set(known):
        raise ProfileError(f"{name} must be an object with fields of {', '.join(known)}")
    return dict(raw)


def _prefix(raw: object) -> Prefix:
    values = _fields("prefix", raw, ("count", "tokens"))
    return Prefix(values.get("count", 1), values.get("tokens", 0))


def _stages(raw: object) -> tuple[Stage, ...]:
    if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
        raise ProfileError("stages must be a list of objects with rate and seconds")
    entries = [_fields(f"stages[{index}]", entry, ("rate", "seconds")) for index, entry in enumerate(raw)]
    return tuple(Stage(entry.get("rate", 0), entry.get("seconds", 0)) for entry in entries)


def is_number(value: object) -> bool:
    """Whether it is a number that a float can hold: one of JSON or YAML may have hundreds of digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ProfileError(f"{name} must be a whole number between {low} and {high}, not {value!r}")
