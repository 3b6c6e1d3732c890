"""Durations, percentages and Kubernetes quantities as numbers."""

from __future__ import annotations

import math
import re

UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SUFFIXES = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
            "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}  # fmt: skip
# The same forms as patterns of a schema.
DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
PERCENT = r"^[0-9]+(\.[0-9]+)?%$"
SHARE = r"^(100(\.0+)?|[0-9]{1,2}(\.[0-9]+)?)%$"  # 0% to 100%
PART = r"^[0-9]{1,2}(\.[0-9]+)?%$"  # below 100%
CONFIDENCE = r"^[5-9][0-9](\.[0-9]{1,3})?%$"  # 50% to 99.999%
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"


def seconds(text: str) -> float:
    """ "1h30m" -> 5400.0. Raises ValueError."""
    parts = re.findall(_PART, text)
    if not parts or "".join(value + unit for value, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 90s, 5m or 1h30m")
    return sum(float(value) * UNIT_SECONDS[unit] for value, unit in parts)


def fraction(text: str) -> float:
    """ "15%" -> 0.15. Raises ValueError."""
    if not re.fullmatch(PERCENT, text):
        raise ValueError(f"{text!r} is not a percentage such as 15%")
    return float(text[:-1]) / 100


def amount(text: str) -> float:
    """A quantity in its base unit: "250m" -> 0.25, "2Gi" -> 2147483648.0. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)", text)
    if not match or match[2] not in SUFFIXES:
        raise ValueError(f"{text!r} is not a quantity such as 500m, 2 or 4Gi")
    return float(match[1]) * SUFFIXES[match[2]]


def whole(cpu: str) -> int:
    """Threads for a CPU request: at least one, rounded up."""
    return max(1, math.ceil(amount(cpu) - 1e-9))
