"""Reads the numbers that selectors name out of a Prometheus text. Knows no engine; never guesses a missing number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pagefleet_contract.engine_metrics import Selector

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
Found = Mapping[str, list[Sample]]


def samples(text: str, names: Iterable[str]) -> Found:
    """The samples of these names; of an engine's page that is a few lines in hundreds. Raises ValueError."""
    wanted = set(names)
    lines = [line for line in text.splitlines() if (name := _NAME.match(line)) and name[0] in wanted]
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def number(found: Found, wanted: Selector) -> float | None:
    """The sum of the series that are meant; None when there is none. Raises ValueError when one is no finite number >= 0."""
    values = []
    for sample in found.get(wanted.name, ()):
        if wanted.label and wanted.value is None:
            values.append(float(sample.labels.get(wanted.label, "")))
        elif not wanted.label or sample.labels.get(wanted.label) == wanted.value:
            values.append(sample.value)
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError(f"{wanted.name} is not a finite number that is not negative")
    return sum(values) if values else None
