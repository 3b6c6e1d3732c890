"""Durations, percentages and Kubernetes quantities as numbers."""

from __future__ import annotations

import math
import re
from fractions import Fraction

UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SUFFIXES = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
            "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}  # fmt: skip
# The same forms as patterns of a schema.
DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
TIME_LIMIT = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"  # a duration that CEL's and Go's functions read: these have no days
PERCENT = r"^[0-9]+(\.[0-9]+)?%$"
SHARE = r"^(100(\.0+)?|[0-9]{1,2}(\.[0-9]+)?)%$"  # 0% to 100%
PART = r"^[0-9]{1,2}(\.[0-9]+)?%$"  # below 100%
CONFIDENCE = r"^[5-9][0-9](\.[0-9]{1,3})?%$"  # 50% to 99.999%
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
# What Kubernetes accepts beyond it: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_BILLIONTHS = {
    **{suffix: 1000**power for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"))},
    **{suffix: 1024**power * 10**9 for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)"


def seconds(text: str) -> float:
    """ "1h30m" -> 5400.0. Raises ValueError."""
    parts = re.findall(_PART, text)
    if not parts or "".join(value + unit for value, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 90s, 1h30m or 3d")
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


def canonical(text: str) -> str:
    """Write a Kubernetes quantity in the same way for each value: "1000m" -> "1", "1024Mi" -> "1Gi", "0.5" -> "500m".

    It is the shortest text without a fraction. As in Kubernetes a value is a whole number of billionths, rounded up. A text
    that is no quantity stays as it is.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return text
    number, exponent, suffix = match.groups()
    unit = Fraction(10) ** (int(exponent) + 9) if exponent else Fraction(_BILLIONTHS[suffix or ""])
    value = math.ceil(Fraction(number.rstrip(".")) * unit)
    forms = [f"{value // size}{name}" for name, size in _BILLIONTHS.items() if value % size == 0]
    return min(forms, key=lambda form: (len(form), form))
