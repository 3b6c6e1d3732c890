"""Reads the numbers that selectors name from a text in Prometheus' format. A missing number stays missing.

The page of any engine is read in the same way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pagefleet_contract.engine_metrics import Selector

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
Samples = Mapping[str, list[Sample]]  # by name


def samples(text: str, names: Iterable[str]) -> Samples:
    """The samples of these names, a few lines among the hundreds of an engine's page. Raises ValueError."""
    chosen = set(names)
    lines = [line for line in text.splitlines() if (name := _NAME.match(line)) and name[0] in chosen]
    result: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            result.setdefault(sample.name, []).append(sample)
    return result


def number(page: Samples, chosen: Selector) -> float | None:
    """The sum of the selected series, None without any. Raises ValueError for a number that is not finite and >= 0."""
    values = []
    for sample in page.get(chosen.name, ()):
        if chosen.label and chosen.value is None:
            values.append(float(sample.labels.get(chosen.label, "")))
        elif not chosen.label or sample.labels.get(chosen.label) == chosen.value:
            values.append(sample.value)
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError(f"{chosen.name} is not a finite number that is not negative")
    return sum(values) if values else None
