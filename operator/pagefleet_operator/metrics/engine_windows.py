"""Reads the engines' own latency histograms and retains the counts that came between two readings, as slices."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import aiohttp

from pagefleet_contract.addresses import authority
from pagefleet_contract.engine_metrics import HISTOGRAMS
from pagefleet_operator.domain.base.absence import tolerated_silent
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.accounts import Account, UnaskedError, fetch_charged, unlimited
from pagefleet_operator.metrics.cumulative import Counts, Past, Pod, counts, names
from pagefleet_operator.metrics.fetching import FetchError, Question
from pagefleet_operator.metrics.metrics_page import MAX_BYTES, samples

TIMEOUT_SECONDS = 2.0


class EngineWindows:
    """The engines' slices of each service whose rollout is judged."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._past: dict[ServiceKey, Past] = {}
        self._silence: dict[ServiceKey, str] = {}

    async def read(
        self,
        pods: Sequence[Pod],
        namespace: str,
        service: str,
        signals: Collection[str] = HISTOGRAMS,
        account: Account | None = None,
    ) -> tuple[Slice, ...] | None:
        """The slices of a service; None when too many of a revision's pods do not answer, because a silent pod must not look
        like a good one."""
        key = (namespace, service)
        past = self._past.setdefault(key, Past())
        account = account or unlimited()
        answers = await asyncio.gather(*(self._fetch(pod, signals, account) for pod in pods))
        silent: dict[str, list[str]] = {}  # reasons by revision
        for pod, answer in zip(pods, answers, strict=True):
            if isinstance(answer, Counts):
                with account.spending():
                    past.add(pod, answer)
            else:
                silent.setdefault(pod.revision, []).append(f"pod {pod.name} {answer}")
        past.trim(time.time(), [pod.name for pod in pods])
        self._silence[key] = _reason(pods, silent) if pods else "none of its pods is ready"
        return None if self._silence[key] else tuple(past.slices)

    def silence(self, namespace: str, service: str) -> str:
        """The reason why the last `read` gave None, "" when it gave slices."""
        return self._silence.get((namespace, service), "")

    def forget(self, namespace: str, service: str) -> None:
        self._past.pop((namespace, service), None)
        self._silence.pop((namespace, service), None)

    async def _fetch(self, pod: Pod, signals: Collection[str], account: Account) -> Counts | str:
        """The pod's counts, or the reason why there are none."""
        metrics = pod.engine.metrics
        if metrics is None:
            return "has an engine that reports no metrics"
        url = f"http://{authority(pod.address, pod.engine.port)}{metrics.path}"
        try:
            page = await fetch_charged(self._session, Question(url, TIMEOUT_SECONDS, MAX_BYTES), account)
        except UnaskedError as error:
            return str(error)
        except FetchError as error:
            return f"{error} (at {url})"
        try:
            with account.spending():
                text = page.decode(errors="replace")
                return counts(samples(text, names(metrics, signals)), time.time(), metrics, signals)
        except (ValueError, KeyError) as error:
            return f"has a metrics page that cannot be read: {str(error)[:200]}"


def _reason(pods: Sequence[Pod], silent: Mapping[str, Sequence[str]]) -> str:
    """The reason of the first silent pod of a revision that has too many of them, "" when no revision has."""
    ready = Counter(pod.revision for pod in pods)
    too_many = (reasons[0] for revision, reasons in silent.items() if len(reasons) > tolerated_silent(ready[revision]))
    return next(too_many, "")
