"""docs/reference/metrics.md: every metric of engine, gateway, routing sidecar, batches server and operator, from their own registries.

prometheus_client tells the names of labels only where it keeps them itself (`_labelnames`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from pagefleet_batches.metrics import Metrics as BatchesMetrics
from pagefleet_engine.api.observability.metrics import Metrics as EngineMetrics
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.measuring.metrics import Metrics as GatewayMetrics
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.picker import Picker
from pagefleet_observability.files import GROUPS
from pagefleet_observability.rules.rule import Recording
from pagefleet_operator.web.own_metrics import Metrics as OperatorMetrics
from pagefleet_reference.markdown import cell, code, table
from pagefleet_sidecar.metrics import Metrics as SidecarMetrics

# What the engine adds to its info metric once the model is loaded.
DESCRIBED = ("architecture", "model_impl", "kernels", "instructions", "kv_cache_dtype", "weights")
INTRODUCTION = """\
# Metrics

Every metric that the pieces export on `/metrics`, from their own registries. Histograms have `_bucket`, `_count` and `_sum`.
Every scrape adds `namespace` and `pod` where a metric does not name them itself; engine series get `service` and `revision`
from their pod's labels. How they are scraped and what the alerts make of them: [observability](../observability.md).
"""


@dataclass(frozen=True, order=True)
class Metric:
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def page() -> str:
    parts = [INTRODUCTION]
    for title, found in (
        ("Engine", engine()),
        ("Gateway", gateway()),
        ("Routing sidecar", sidecar()),
        ("Batches", batches()),
        ("Operator", operator()),
    ):
        parts.append(f"## {title}\n\n{table(('metric', 'type', 'labels', 'what it is'), map(_row, found))}")
    recorded = [(code(rule.name), code(rule.expr)) for group in GROUPS for rule in group.rules if _recorded(rule)]
    parts.append(
        "## Recorded series\n\nBy the shipped rules (`manifests/monitoring`).\n\n"
        + table(("series", "is"), sorted(recorded))
    )
    return "\n".join(parts)


def engine() -> list[Metric]:
    metrics = EngineMetrics("model", EngineConfig("file:///model"))
    metrics.describe(dict.fromkeys(DESCRIBED, ""))
    found = list(_registered(metrics.registry))
    for one in metrics._histograms:
        found.append(Metric(one._name, "histogram", one.label_names, one.text().split("\n", 1)[0].split(" ", 3)[3]))
    return sorted(found)


def gateway() -> list[Metric]:
    ledger = Ledger()
    picker = Picker(State(), ledger, random.Random(1))  # noqa: S311 - nothing is picked
    return sorted(_registered(GatewayMetrics(ledger, Holding(picker, time.monotonic, lambda _: None)).registry))


def batches() -> list[Metric]:
    return sorted(_registered(BatchesMetrics().registry))


def sidecar() -> list[Metric]:
    return sorted(_registered(SidecarMetrics().registry))


def operator() -> list[Metric]:
    return sorted(_registered(OperatorMetrics().registry))


def _recorded(rule: object) -> bool:
    return isinstance(rule, Recording)


def _row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(code(label) for label in metric.labels) or "-"
    return code(metric.name), metric.kind, labels, cell(metric.help)


def _registered(registry: CollectorRegistry) -> Iterator[Metric]:
    collectors: list[Any] = list(registry._collector_to_names)
    for collector in collectors:
        if hasattr(collector, "_labelnames"):
            yield _metric(collector._name, collector._type, collector._labelnames, collector._documentation)
            continue
        for family in collector.collect():
            yield _metric(family.name, family.type, family._labelnames, family.documentation)


def _metric(name: str, kind: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name + {"counter": "_total", "info": "_info"}.get(kind, ""), kind, tuple(labels), text)
