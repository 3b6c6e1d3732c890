"""Engines' metrics pages in virtual time, read by the operator's own reader. Each pod says when it is silent."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from pagefleet_contract.engine_metrics import OURS, SUCCESS
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.metrics import engine_windows
from pagefleet_operator.metrics.accounts import Account
from pagefleet_operator.metrics.cumulative import Pod
from pagefleet_operator.metrics.engine_windows import EngineWindows
from pagefleet_operator.metrics.fetching import FetchError, Question

EDGES = (*(round(0.02 * 1.1**step, 6) for step in range(50)), math.inf)


@dataclass
class Page:
    """The counters of one engine process; a restart makes them 0."""

    buckets: list[int] = field(default_factory=lambda: [0] * len(EDGES))
    silent: bool = False

    @property
    def requests(self) -> int:
        return sum(self.buckets)

    def restart(self) -> None:
        self.buckets = [0] * len(EDGES)

    def serve(self, seconds: float) -> None:
        self.buckets[next(place for place, edge in enumerate(EDGES) if seconds <= edge)] += 1

    def text(self) -> str:
        lines, total = [], 0
        for edge, count in zip(EDGES, self.buckets, strict=True):
            total += count
            lines.append(f'{OURS.ttft}_bucket{{le="{"+Inf" if math.isinf(edge) else edge}"}} {total}')
        return "\n".join([*lines, f'{SUCCESS}{{finished_reason="stop"}} {total}', ""])


class Engines:
    """Pages by address, and the reader of them; `now` is its clock."""

    def __init__(self, patch: pytest.MonkeyPatch, seed: int = 0) -> None:
        self.now, self.pages = 1_000_000.0, dict[str, Page]()
        self._source = random.Random(seed)
        self.windows = EngineWindows(None)  # type: ignore[arg-type]
        patch.setattr(engine_windows, "fetch_charged", self._fetch)
        patch.setattr(engine_windows, "time", SimpleNamespace(time=lambda: self.now))

    def page(self, pod: str) -> Page:
        return self.pages.setdefault(pod, Page())

    def serve(self, pod: str, requests: int, factor: float = 1.0) -> None:
        """Answer requests whose first token takes a tenth of a second, or `factor` times as long."""
        for _ in range(requests):
            self.page(pod).serve(0.1 * factor * self._source.lognormvariate(0, 0.3))

    async def read(self, pods: Iterable[tuple[str, str]]) -> tuple[Slice, ...] | None:
        """Read pods, which are given by name and revision."""
        asked = [Pod(name, name, revision) for name, revision in pods]
        return await self.windows.read(asked, "ns", "chat", ("ttft",))

    async def _fetch(self, session: object, question: Question, account: Account) -> bytes:
        page = self.page(question.url.removeprefix("http://").partition(":")[0])
        if page.silent:
            raise FetchError("does not answer within 2 s")
        return page.text().encode()
