"""The metrics page as Prometheus text, rendered in steps between which the event loop answers requests.

With hundreds of services a page has thousands of lines, and one pass over them would stall every pick for a third of a
second. A label set's samples are read in one step, so a histogram is never torn. Source: Prometheus text format 0.0.4.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.samples import Sample

STEP_SECONDS = 0.0005
COUNTER_SUFFIX = "_total"
_NAMES = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def pieces(registry: CollectorRegistry) -> Iterator[str]:
    """Yield the page's text in pieces that each take some 0.1 ms. The times at which series were created are left out."""
    for collector in list(registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase) and collector._labelnames:
            (family,) = collector.describe()
            yield _head(family)
            for values in list(collector._metrics):
                if (child := collector._metrics.get(values)) is not None:  # it may have gone since
                    labels = dict(zip(collector._labelnames, values, strict=True))
                    yield "".join(_line(sample, labels) for found in child.collect() for sample in _shown(found))
        else:
            for family in collector.collect():
                yield _head(family)
                yield from (_line(sample, {}) for sample in _shown(family))


class Exposition:
    """Renders one page at a time: a scrape that comes meanwhile gets the page that is under way."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._under_way: asyncio.Task[list[bytes]] | None = None

    async def page(self) -> list[bytes]:
        """Return the page in parts of some 10 KB, to be sent one after the other."""
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._render())
            self._under_way.add_done_callback(self._forget)
        # A scraper that goes away must not end the page of another one.
        return await asyncio.shield(self._under_way)

    def _forget(self, _: asyncio.Task[list[bytes]]) -> None:
        self._under_way = None

    async def _render(self) -> list[bytes]:
        page: list[bytes] = []
        step: list[str] = []
        until = time.perf_counter() + STEP_SECONDS
        for piece in pieces(self._registry):
            step.append(piece)
            if time.perf_counter() >= until:
                page.append("".join(step).encode())
                step.clear()
                await asyncio.sleep(0)
                until = time.perf_counter() + STEP_SECONDS
        page.append("".join(step).encode())
        return page


def _head(family: Metric) -> str:
    name = family.name + (COUNTER_SUFFIX if family.type == "counter" else "")
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {family.type}\n"


def _shown(family: Metric) -> Iterable[Sample]:
    return (sample for sample in family.samples if not sample.name.endswith("_created"))


def _line(sample: Sample, labels: dict[str, str]) -> str:
    every = labels | sample.labels
    shown = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(every.items()))
    value = _NAMES.get(text := repr(float(sample.value)), text)
    return f"{sample.name}{{{shown}}} {value}\n" if shown else f"{sample.name} {value}\n"
