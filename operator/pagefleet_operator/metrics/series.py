"""Turns Prometheus' samples of cumulative histograms into readings of the scraped targets. Nothing is extrapolated.

increase() and rate() stretch two scrapes over a whole window, so that counts which never occurred would weigh as
evidence. A range of raw samples has the scrapes themselves. They are compared in the same way as the pages of an engine.
No I/O.
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
from pagefleet_operator.domain.base.absence import tolerated_silent
from pagefleet_operator.metrics.accounts import taking_turns, unlimited
from pagefleet_operator.metrics.cumulative import Counts, counts, cumulative, names
from pagefleet_operator.metrics.prometheus_client import result

TARGET = ("job", "instance", "pod")  # the labels that distinguish scraped targets
HISTOGRAM = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^{}\[\]]*\})?")
Target = tuple[str, ...]


@dataclass(frozen=True)
class Query:
    """A query for the engines' own metrics of `signals`, or for the named histogram `own` of a single signal."""

    namespace: str
    service: str
    signals: tuple[str, ...]
    own: str = ""

    def text(self, revision: str, metrics: EngineMetrics, seconds: float) -> str:
        """PromQL for the raw samples of a revision's series. Raises ValueError when `own` names no histogram."""
        span = f"[{math.ceil(seconds)}s]"
        if not self.own:
            read = "|".join(dict.fromkeys(names(metrics, self.signals)))
            return f'{{__name__=~"{read}",namespace="{self.namespace}",service="{self.service}",revision="{revision}"}}{span}'
        match = HISTOGRAM.fullmatch(self.own)
        if match is None:
            raise ValueError(f"{self.own!r} is not NAME or NAME{{matchers}}")
        filled = {"namespace": self.namespace, "service": self.service, "revision": revision}
        return f"{match[1]}_bucket{Template(match[2] or '').safe_substitute(filled)}{span}"

    def reading(self, samples: Mapping[str, list[Sample]], time: float, metrics: EngineMetrics) -> Counts:
        """One scrape of a target. Raises ValueError or KeyError for impossible numbers."""
        if not self.own:
            return counts(samples, time, metrics, self.signals)
        name = self.own.partition("{")[0]
        unit = 1e-3 if name.endswith("_milliseconds") else 1.0
        buckets = cumulative(samples[f"{name}_bucket"], unit)
        return Counts(time, dict.fromkeys(self.signals, buckets), buckets[math.inf], 0.0)


async def scrapes(
    document: Any, query: Query, metrics: EngineMetrics, after: Mapping[Target, float]
) -> tuple[dict[Target, list[Counts]], str]:
    """Each target's readings later than `after`, oldest first, and ""; or {} and the reason why there are none.

    Other tasks run between two series and between two readings: an answer of 16 MiB takes seconds.
    """
    kind, series, reason = result(document)
    if reason:
        return {}, reason
    if kind != "matrix":
        return {}, f"the answer is a {kind}, not samples over time"
    scraped_targets: dict[Target, dict[float, dict[str, list[Sample]]]] = {}
    try:
        async for one in taking_turns(series, unlimited()):
            labels = dict(one["metric"])
            target, name = tuple(str(labels.get(label, "")) for label in TARGET), labels.pop("__name__")
            scraped = scraped_targets.setdefault(target, {})
            for time, value in one["values"]:
                if time > after.get(target, 0.0):
                    scraped.setdefault(float(time), {}).setdefault(name, []).append(Sample(name, labels, float(value)))
        read: dict[Target, list[Counts]] = {target: [] for target in scraped_targets}
        ordered = ((target, time) for target, scraped in scraped_targets.items() for time in sorted(scraped))
        async for target, time in taking_turns(ordered, unlimited()):
            read[target].append(query.reading(scraped_targets[target][time], time, metrics))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, f"its samples cannot be read: {str(error)[:200]}"
    return (read, "") if read else ({}, "it has no series of it")


def unscraped(newest: Mapping[Target, float], pods: Collection[str], now: float, late: float) -> str:
    """Name the first ready pod without samples younger than `late` seconds, in words; "" when enough pods have some.

    Targets without a label for the pod are counted instead: there must be as many of them as pods.
    """
    fresh = {target: time for target, time in newest.items() if now - time <= late}
    named = {target[TARGET.index("pod")] for target in fresh} - {""}
    missing = sorted(set(pods) - named) if named else list(pods)[len(fresh) :]
    if len(missing) <= tolerated_silent(len(pods)):
        return ""
    latest = max((time for target, time in newest.items() if missing[0] in target), default=None)
    ago = "none at all" if latest is None else f"the newest is {now - latest:.0f} s old"
    return f"it has no fresh samples of pod {missing[0]} ({ago})"
