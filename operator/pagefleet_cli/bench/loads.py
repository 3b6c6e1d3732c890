"""The load of another tool's file: inference-perf's config.yml, guidellm's scenario or its data options. Pure.

Sources: inference-perf's docs/config.md and guidellm's docs/guides/datasets.md, of the releases that docs/cli.md names. A field that
changes the load and cannot be carried over is an error; any other one is named in a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from pagefleet_cli.bench import profile as own
from pagefleet_cli.bench.fields import Fields
from pagefleet_cli.bench.profile import Prefix, Profile, ProfileError, Spread, Stage

HINTS = {
    "server.api_key": "give --api-key-file", "load.request_timeout": "give --timeout",
    "api.streaming": "answers are always streamed",
    "spec.profile.kind": "arrivals are a Poisson process",
    "data.shared_prefix.num_users_per_system_prompt": "no prompt is sent twice",
    "data.shared_prefix.num_prompts_per_group": "no prompt is sent twice",
    "spec.backend.api_key": "give --api-key-file", "spec.backend.timeout": "give --timeout",
}  # fmt: skip


@dataclass(frozen=True)
class Load:
    """A profile, and what else a file says about the requests; None where it says nothing. `left`: the fields that are not carried over."""

    profile: Profile
    url: str | None = None
    model: str | None = None
    chat: bool | None = None
    ignore_eos: bool | None = None
    left: tuple[str, ...] = ()


def read(text: str) -> Load:
    """Read a profile in any of the formats, which its fields tell apart. Raises ProfileError."""
    try:
        document = yaml.safe_load(text)
        if isinstance(document, str) and "=" in document:
            pairs = dict(pair.partition("=")[::2] for pair in document.split(","))
            document = {key.strip(): yaml.safe_load(value) for key, value in pairs.items()}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError of a day that no month has
        raise ProfileError(f"the profile is neither JSON nor YAML: {error}") from error
    if isinstance(document, Mapping):
        if "spec" in document:
            return _scenario(Fields(document))
        if {"prompt_tokens", "output_tokens"} & set(document):
            fields, profile = _data(Profile(), Fields(document), "")
            return _checked(profile, fields)
        if {"load", "data", "api"} & set(document):
            return _inference_perf(Fields(document))
    return Load(own.parse(text))


def _checked(profile: Profile, fields: Fields, **settings: Any) -> Load:
    return Load(own.checked(own.staged(profile)), left=fields.left(HINTS), **settings)


def _inference_perf(fields: Fields) -> Load:
    kind = fields.peek("load.type", "constant")
    if kind not in ("constant", "poisson"):
        raise ProfileError(f"load.type must be constant or poisson (this load is an open loop), not {kind!r}")
    fields.take("load.type")
    if fields.peek("load.sweep") is not None:
        raise ProfileError("load.sweep cannot be carried over: its rates follow from measurements; give load.stages")
    profile = Profile(seed=fields.take("load.base_seed", 0))
    entries = fields.take("load.stages", [])
    if not isinstance(entries, list) or not entries:
        raise ProfileError("load.stages must be a list of at least one stage with rate and duration")
    stages = []
    for index, entry in enumerate(entries):
        stage = Fields(entry, f"load.stages[{index}].")
        stages.append(Stage(stage.number("rate"), stage.number("duration")))
        fields.adopt(stage)
    profile = replace(profile, stages=tuple(stages), pause=fields.number("load.interval", 1.0))
    source = fields.take("data.type", "mock")
    if source in ("random", "synthetic"):
        prompt, answer = (_spread(fields, f"data.{side}_distribution") for side in ("input", "output"))
        profile = replace(profile, prompt_tokens=prompt, output_tokens=answer)
    elif source == "shared_prefix":
        profile = _shared_prefix(profile, fields)
    else:
        raise ProfileError(
            f"data.type must be random, synthetic or shared_prefix, not {source!r}: only lengths carry over"
        )
    api = fields.take("api.type", "completion")
    if api not in ("completion", "chat"):
        raise ProfileError(f"api.type must be completion or chat, not {api!r}")
    if fields.peek("api.streaming") is True:
        fields.take("api.streaming")
    return _checked(
        profile, fields, chat=api == "chat", ignore_eos=fields.take("server.ignore_eos", True),
        url=fields.take("server.base_url"), model=fields.take("server.model_name"),
    )  # fmt: skip


def _shared_prefix(profile: Profile, fields: Fields) -> Profile:
    at = "data.shared_prefix"
    if fields.peek(f"{at}.enable_multi_turn_chat"):
        raise ProfileError(f"{at}.enable_multi_turn_chat cannot be carried over: every request stands alone")
    fields.take(f"{at}.enable_multi_turn_chat")
    groups = fields.take(f"{at}.num_unique_system_prompts", fields.take(f"{at}.num_groups", 10))
    tokens = fields.take(f"{at}.system_prompt_len", 100)
    if not isinstance(tokens, int):
        raise ProfileError(f"{at}.system_prompt_len must be a number of tokens: prefixes have one length")
    sides = []
    for side in ("question", "output"):
        old = f"{at}.{side}_distribution"
        sides.append(_spread(fields, old if fields.peek(old) is not None else f"{at}.{side}_len", 50))
    seed = fields.take(f"{at}.seed")
    return replace(
        profile, prompt_tokens=sides[0], output_tokens=sides[1], prefix=Prefix(groups, tokens),
        seed=profile.seed if seed is None else seed,
    )  # fmt: skip


def _spread(fields: Fields, path: str, default: int | None = None) -> Spread:
    """A length or a distribution of inference-perf: what it leaves out has that tool's defaults."""
    raw = fields.peek(path, default)
    if raw is None:
        raise ProfileError(f"{path} is missing: data.type needs it")
    if not isinstance(raw, Mapping):
        length = fields.number(path, default)
        return Spread("fixed", length, 0, length, length)
    kind = fields.take(f"{path}.type", "normal")
    low, high = fields.number(f"{path}.min", 10), fields.number(f"{path}.max", 1024)
    mean, deviation = fields.number(f"{path}.mean", 512), fields.number(f"{path}.std_dev", 200)
    if fields.peek(f"{path}.variance") is not None:
        deviation = max(0.0, fields.number(f"{path}.variance")) ** 0.5
    if kind == "fixed":
        return Spread("fixed", mean, 0, int(mean), int(mean))
    if kind not in own.DISTRIBUTIONS:
        raise ProfileError(f"{path}.type must be one of {', '.join(own.DISTRIBUTIONS)}, not {kind!r}")
    if kind == "uniform":  # its mean follows from the limits
        return Spread(kind, (low + high) / 2, 0, low, high)
    return Spread(kind, mean, deviation, low, high)


def _scenario(fields: Fields) -> Load:
    """A scenario of guidellm: `spec` with profile, constraints, data and seed."""
    kind = fields.peek("spec.profile.kind", "sweep")
    if kind not in ("async", "constant", "poisson"):
        raise ProfileError(f"spec.profile.kind must be async, constant or poisson (an open loop), not {kind!r}")
    if kind == "poisson":
        fields.take("spec.profile.kind")
    rates = fields.take("spec.profile.rate", [])
    rates = rates if isinstance(rates, list) else [rates]
    profile = Profile(seed=fields.take("spec.seed.value", 0))
    fields.take("spec.seed.kind")
    entries = fields.take("spec.data", [])
    if not isinstance(entries, list) or len(entries) != 1:
        raise ProfileError("spec.data must be a list of one source")
    data, profile = _data(profile, Fields(entries[0], "spec.data[0]."), "spec.data[0].")
    fields.adopt(data)
    profile = replace(profile, stages=_guidellm_stages(fields, rates))
    fields.take("spec.backend.kind")
    url, model = fields.take("spec.backend.target"), fields.take("spec.backend.model")
    return _checked(profile, fields, url=url, model=model)


def _guidellm_stages(fields: Fields, rates: list[Any]) -> tuple[Stage, ...]:
    """One stage for each rate, of max_duration's seconds or of max_requests' requests, whichever ends first."""
    limits: dict[str, list[Any]] = {}
    entries = fields.take("spec.constraints", [])
    if not isinstance(entries, list):
        raise ProfileError(f"spec.constraints must be a list, not {entries!r}")
    for index, entry in enumerate(entries):
        limit = Fields(entry, f"spec.constraints[{index}].")
        kind = limit.peek("kind")
        if kind in ("max_duration", "max_requests"):
            name = "seconds" if kind == "max_duration" else "count"
            value = limit.take(name)
            limits[kind] = value if isinstance(value, list) else [value] * len(rates)
            _positive(f"spec.constraints[{index}].{name}", limits[kind])
            limit.take("kind")
        fields.adopt(limit)
    _positive("spec.profile.rate", rates)
    if not rates or not limits or any(len(values) != len(rates) for values in limits.values()):
        raise ProfileError("spec.profile.rate needs a max_duration or max_requests in spec.constraints for each rate")
    return tuple(
        Stage(rate, min(values[index] / (rate if kind == "max_requests" else 1) for kind, values in limits.items()))
        for index, rate in enumerate(rates)
    )


def _positive(name: str, values: list[Any]) -> None:
    for value in values:
        if not own.is_number(value) or not 0 < value <= own.MOST:
            raise ProfileError(f"{name} must be above 0 and at most {own.MOST}, not {value!r}")


def _data(profile: Profile, fields: Fields, at: str) -> tuple[Fields, Profile]:
    kind = fields.take("kind", "synthetic_text")
    if kind != "synthetic_text":
        raise ProfileError(f"{at}kind must be synthetic_text, not {kind!r}: only lengths carry over")
    if fields.peek("turns", 1) != 1:
        raise ProfileError(f"{at}turns must be 1: every request stands alone")
    fields.take("turns")
    prefix = _prefix(fields, at)
    sides = [_around(fields, f"{side}_tokens", at) for side in ("prompt", "output")]
    return fields, replace(profile, prompt_tokens=sides[0], output_tokens=sides[1], prefix=prefix)


def _prefix(fields: Fields, at: str) -> Prefix | None:
    count, tokens = fields.take("prefix_count", 1), fields.take("prefix_tokens", 0)
    buckets = fields.take("prefix_buckets") or []
    if not isinstance(buckets, list) or not all(isinstance(one, Mapping) for one in buckets):
        raise ProfileError(f"{at}prefix_buckets must be a list of objects, not {buckets!r}")
    if len(buckets) > 1:
        raise ProfileError(f"{at}prefix_buckets must be one bucket: all prefixes have one length here")
    for bucket in buckets:
        count, tokens = bucket.get("prefix_count", 1), bucket.get("prefix_tokens", 0)
    return Prefix(count, tokens) if tokens else None


def _around(fields: Fields, name: str, at: str) -> Spread:
    """guidellm's lengths: normal around the mean with a standard deviation, clamped to five of them where no limits are given; uniform
    between limits without one."""
    mean, deviation = fields.take(name), fields.take(f"{name}_stdev") or 0
    if not isinstance(mean, int) or not isinstance(deviation, int):
        raise ProfileError(f"{at}{name} must be a number of tokens, not {mean!r} with a stdev of {deviation!r}")
    low = fields.number(f"{name}_min", max(1, mean - 5 * deviation))
    high = fields.number(f"{name}_max", mean + 5 * deviation)
    if not deviation and low != high:
        return Spread("uniform", (low + high) / 2, 0, low, high)
    return Spread("normal" if deviation else "fixed", mean, deviation, low, high)
