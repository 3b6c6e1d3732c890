"""What one gateway pod tells the others, and what it takes over from them. No I/O; the time is an argument.

`pods` of a message has the rows of in_flight.py by the pods' uids, `ejections` those of outliers.py, `held` those of
holding.py by services. `served` has the tokens of shares.py by services, `paces` the sums of paces.py by the pods' uids, `budgets` the
counters of budgets.py, and `prefixes` the block hashes by the pods' caches. `whole` states whether `pods` and `held` are all. Total:
what is malformed is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pagefleet_gateway.cluster.steps import Steps, parts
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.limits.budgets import Budgets, Counters
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.outliers import merged
from pagefleet_gateway.picking.prompts.prefixes import HASH_BYTES, MAX_NEWS, Prefixes

STEP_ROWS, STEP_CACHES = 200, 20  # that are taken over in one step, the caches with their blocks


@dataclass
class News:
    """What has changed at a gateway, or with `whole` everything that it has in flight and holds."""

    pods: dict[str, list[int]] = field(default_factory=dict)
    prefixes: dict[str, bytes] = field(default_factory=dict)
    ejections: dict[str, list[int]] = field(default_factory=dict)
    held: dict[str, list[list[object]]] = field(default_factory=dict)
    served: dict[str, dict[str, int]] = field(default_factory=dict)
    paces: dict[str, list[int]] = field(default_factory=dict)
    budgets: Counters = field(default_factory=dict)
    whole: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.pods or self.prefixes or self.ejections or self.held or self.served or self.paces or self.budgets
        )

    def message(self) -> dict[str, object]:
        """Return what is sent."""
        return dict(vars(self))

    def add(self, news: News) -> None:
        """Add what has changed since. Of prefixes there are MAX_NEWS at most."""
        self.pods.update(news.pods)
        self.held.update(news.held)
        self.paces.update(news.paces)
        for month, processes in news.budgets.items():
            for process, counts in processes.items():
                self.budgets.setdefault(month, {}).setdefault(process, {}).update(counts)
        for service, served in news.served.items():
            known = self.served.setdefault(service, {})
            for name, tokens in served.items():
                known[name] = known.get(name, 0) + tokens
        for uid, row in news.ejections.items():
            self.ejections[uid] = merged(self.ejections.get(uid), row)
        if sum(map(len, self.prefixes.values())) < MAX_NEWS * HASH_BYTES:
            for cache, hashes in news.prefixes.items():
                self.prefixes[cache] = self.prefixes.get(cache, b"") + hashes


class Newsroom:
    """The news of one gateway pod. Its ledger, prefixes and queues are read, and what other pods tell is added to them."""

    def __init__(
        self, ledger: Ledger, prefixes: Prefixes, holding: Holding | None = None, budgets: Budgets | None = None
    ) -> None:
        """`holding` None: no request ever waits here. `budgets` None: no key has one."""
        self._ledger, self._prefixes, self._holding = ledger, prefixes, holding
        self._budgets = budgets or Budgets()

    def gather(self, news: News, now: float) -> Steps:
        """Add everything to the news that another gateway hears first."""
        ledger = self._ledger
        for uids in parts(ledger.used()):
            news.pods.update(ledger.rows(uids))
            news.paces.update(ledger.backlogs.paces.rows(uids))
            yield
        caches = self._prefixes.caches
        for some in parts(caches):
            news.prefixes.update(self._prefixes.latest(some, len(caches)))
            yield
        news.ejections = dict(ledger.outliers.rows(now))
        news.held = dict(self._holding.rows()) if self._holding else {}
        news.served = self._holding.turns.served() if self._holding else {}
        news.budgets = self._budgets.copy()

    def changes(self, now: float) -> News:
        """Return what has changed since the last call."""
        return News(
            dict(self._ledger.take_changed()),
            self._prefixes.take_news(),
            dict(self._ledger.outliers.take_changed(now)),
            dict(self._holding.take_changed()) if self._holding else {},
            self._holding.turns.take_served() if self._holding else {},
            self._ledger.backlogs.paces.take_changed(),
            self._budgets.take_changed(),
        )

    def take_over(self, gateway: str, message: Mapping[str, object], now: float) -> Steps:
        """Take over what another gateway tells."""
        whole = message.get("whole") is True
        if whole:
            self._ledger.others.forget(gateway)
        for rows in _parts(message.get("pods"), STEP_ROWS):
            if whole:
                self._ledger.others.update(gateway, rows)
            else:
                self._ledger.hear(gateway, rows, now)
            yield
        for rows in _parts(message.get("paces"), STEP_ROWS):
            self._ledger.backlogs.paces.hear(gateway, rows)
            yield
        self._budgets.hear(message.get("budgets"))
        self._ledger.outliers.hear(message.get("ejections"), now)
        if self._holding is not None:
            self._holding.hear(gateway, message.get("held"), message.get("served"), whole=whole)
        yield
        for prefixes in _parts(message.get("prefixes"), STEP_CACHES):
            for cache, hashes in prefixes.items():
                if isinstance(cache, str) and isinstance(hashes, bytes):
                    self._prefixes.hear(cache, hashes)
            yield

    def forget(self, gateway: str) -> None:
        """Forget the requests of a gateway that is gone or silent. What it saw of pods stays."""
        self._ledger.others.forget(gateway)
        if self._holding is not None:
            self._holding.forget(gateway)


def _parts(rows: object, size: int) -> Iterator[dict[object, object]]:
    """Yield the rows of a message, so many at a time; none of what is not a map."""
    if isinstance(rows, Mapping):
        for keys in parts(rows, size):
            yield {key: rows[key] for key in keys}
