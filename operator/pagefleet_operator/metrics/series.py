"""Prometheus' samples of cumulative histograms as readings of scraped targets: each scrape as it was, never extrapolated.

increase() and rate() would stretch two scrapes over a whole window: counts that were never counted would weigh as
evidence. A range of raw samples has the scrapes themselves, so that what Prometheus keeps is compared as an engine's own
page is. No I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from string import Template
from typing import Any

from prometheus_client.samples import Sample

from pagefleet_contract.engine_metrics import EngineMetrics
from pagefleet_operator.metrics.cumulative import Counts, counts, cumulative, names
from pagefleet_operator.metrics.prometheus_client import result

TARGET = ("job", "instance", "pod")  # labels that tell scraped targets apart
HISTOGRAM = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^{}\[\]]*\})?")
Target = tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """What is asked for: the engines' own metrics for `signals`, or the histogram `own` for its one signal."""

    namespace: str
    service: str
    signals: tuple[str, ...]
    own: str = ""

    def query(self, revision: str, metrics: EngineMetrics, seconds: float) -> str:
        """PromQL for the raw samples of a revision's series. Raises ValueError for what is no histogram."""
        span = f"[{math.ceil(seconds)}s]"
        if not self.own:
            read = "|".join(dict.fromkeys(names(metrics, self.signals)))
            return f'{{__name__=~"{read}",namespace="{self.namespace}",service="{self.service}",revision="{revision}"}}{span}'
        found = HISTOGRAM.fullmatch(self.own)
        if found is None:
            raise ValueError(f"{self.own!r} is not NAME or NAME{{matchers}}")
        filled = {"namespace": self.namespace, "service": self.service, "revision": revision}
        return f"{found[1]}_bucket{Template(found[2] or '').safe_substitute(filled)}{span}"

    def reading(self, samples: Mapping[str, list[Sample]], time: float, metrics: EngineMetrics) -> Counts:
        """One scrape of a target. Raises ValueError or KeyError for numbers that cannot be."""
        if not self.own:
            return counts(samples, time, metrics, self.signals)
        name = self.own.partition("{")[0]
        unit = 1e-3 if name.endswith("_milliseconds") else 1.0
        buckets = cumulative(samples[f"{name}_bucket"], unit)
        return Counts(time, dict.fromkeys(self.signals, buckets), buckets[math.inf], 0.0)


def scrapes(
    document: Any, wanted: Wanted, metrics: EngineMetrics, after: Mapping[Target, float]
) -> tuple[dict[Target, list[Counts]], str]:
    """Each target's readings later than what `after` says, oldest first, and ""; or {} and why there are none."""
    kind, series, reason = result(document)
    if reason:
        return {}, reason
    if kind != "matrix":
        return {}, f"the answer is a {kind}, not samples over time"
    found: dict[Target, dict[float, dict[str, list[Sample]]]] = {}
    try:
        for one in series:
            labels = dict(one["metric"])
            target, name = tuple(str(labels.get(label, "")) for label in TARGET), labels.pop("__name__")
            scraped = found.setdefault(target, {})
            for time, value in one["values"]:
                if time > after.get(target, 0.0):
                    scraped.setdefault(float(time), {}).setdefault(name, []).append(Sample(name, labels, float(value)))
        read = {
            target: [wanted.reading(scraped[time], time, metrics) for time in sorted(scraped)]
            for target, scraped in found.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, f"what it keeps cannot be read: {str(error)[:200]}"
    return (read, "") if read else ({}, "it keeps no series of it")


def unseen(newest: Mapping[Target, float], pods: Collection[str], now: float, late: float) -> str:
    """Which ready pod has no samples younger than `late` seconds, in words; "" when all have, or when targets do not say
    what pod they are and there are as many of them."""
    fresh = {target: time for target, time in newest.items() if now - time <= late}
    named = {target[TARGET.index("pod")] for target in fresh} - {""}
    missing = sorted(set(pods) - named) if named else list(pods)[len(fresh) :]
    if not missing:
        return ""
    latest = max((time for target, time in newest.items() if missing[0] in target), default=None)
    ago = "none at all" if latest is None else f"the newest is {now - latest:.0f} s old"
    return f"it has no fresh samples of pod {missing[0]} ({ago})"
