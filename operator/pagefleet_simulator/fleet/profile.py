"""The profile of a replica: seconds of a step by its work, KV pages, limits of a batch, time to start.

Data, read from and written to JSON. Nothing here simulates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the field and the allowed values."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step: base + prefill x prompt tokens + decode x sequences + kv x tokens of KV read."""

    base: float
    prefill: float
    decode: float
    kv: float = 0.0

    def seconds(self, prefill: float, decode: float, kv: float) -> float:
        return self.base + self.prefill * prefill + self.decode * decode + self.kv * kv


@dataclass(frozen=True)
class Startup:
    """Medians in seconds of the parts of a pod's start; each draw is lognormal with `sigma`.

    `cached` is the share of pods whose node has the image already, so that they pull nothing.
    """

    schedule: float = 2.0
    pull: float = 20.0
    load: float = 40.0
    sigma: float = 0.2
    cached: float = 0.5


@dataclass(frozen=True)
class Profile:
    """One replica.

    `pages` are KV pages of `page_size` tokens. `step_tokens` is the budget of a step, `chunk_tokens` the largest part of
    one prompt in it. A replica is billed for `accelerators`. `source` states the origin of the numbers.
    """

    name: str
    step: StepTime
    pages: int
    page_size: int = 16
    step_tokens: int = 2048
    chunk_tokens: int = 512
    max_sequences: int = 64
    max_queued: int = 256
    accelerators: int = 1
    startup: Startup = Startup()
    source: str = ""
    machine: str = ""

    def __post_init__(self) -> None:
        for name in ("pages", "page_size", "step_tokens", "chunk_tokens", "max_sequences", "accelerators"):
            if getattr(self, name) < 1:
                raise ProfileError(f"{name}: must be at least 1, not {getattr(self, name)}")
        if self.max_queued < 0:
            raise ProfileError(f"max_queued: must not be negative, not {self.max_queued}")
        times = asdict(self.step)
        if any(value < 0 for value in times.values()) or sum(times.values()) <= 0:
            raise ProfileError(f"step: no coefficient may be negative and one must be above 0, not {times}")
        if self.step_tokens <= self.max_sequences:
            raise ProfileError(f"step_tokens: must exceed max_sequences ({self.max_sequences}), not {self.step_tokens}")

    @property
    def capacity(self) -> int:
        """Tokens that the KV cache holds."""
        return self.pages * self.page_size


def parse(raw: object) -> Profile:
    """Read a profile. Raises ProfileError, which names the field, for a document that is no profile."""
    if not isinstance(raw, Mapping):
        raise ProfileError("a profile is a JSON object")
    values = dict(raw)
    try:
        values["step"] = StepTime(**_numbers("step", values.get("step")))
        if "startup" in values:
            values["startup"] = Startup(**_numbers("startup", values["startup"]))
        known = {field.name: field.type for field in fields(Profile)}
        for name, value in values.items():
            if known.get(name) == "int" and (isinstance(value, bool) or not isinstance(value, int)):
                raise ProfileError(f"{name}: must be a whole number, not {value!r}")
        return Profile(**values)
    except TypeError as error:
        raise ProfileError(str(error).replace("__init__() got an", "has an").replace("__init__()", "")) from error


def load(where: str) -> Profile:
    """The shipped profile of that name, or the file. Raises ProfileError."""
    try:
        if where in shipped():
            text = (resources.files(__package__) / "profiles" / f"{where}.json").read_text()
        else:
            text = Path(where).read_text()
        return parse(json.loads(text))
    except OSError as error:
        names = ", ".join(shipped())
        raise ProfileError(f"{where}: {error.strerror}; a profile is a JSON file or one of {names}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{where}: not JSON: {error}") from error


def shipped() -> list[str]:
    folder = resources.files(__package__) / "profiles"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def dump(profile: Profile) -> str:
    return json.dumps(asdict(profile), indent=2) + "\n"


def _numbers(field: str, raw: object) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise ProfileError(f"{field}: must be an object of numbers")
    for name, value in raw.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ProfileError(f"{field}.{name}: must be a number from 0, not {value!r}")
    return {str(name): float(value) for name, value in raw.items()}
