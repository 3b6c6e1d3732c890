"""Retries as a share of requests, by service: a fleet that fails as a whole is not asked three times as much. Pure.

Source: retry budgets of Finagle (Twitter, RetryBudget), without its clock.
"""

from __future__ import annotations

from collections.abc import Collection

from pagefleet_gateway.cluster.state import ServiceKey

CAPACITY = 100.0  # retries that may come at once
DEPOSIT = 0.5  # of a retry, for each request that was answered


class RetryBudgets:
    """A service begins with a full budget; each answered request fills it, each retry takes 1."""

    def __init__(self) -> None:
        self._levels: dict[ServiceKey, float] = {}

    def settle(self, key: ServiceKey, retries: int, answered: bool) -> None:
        """A request is over after `retries` retries."""
        if not retries and (answered and key not in self._levels):
            return  # full, and stays full
        level = self._levels.get(key, CAPACITY) + (DEPOSIT if answered else 0.0) - retries
        self._levels[key] = max(0.0, min(level, CAPACITY))

    def allows(self, key: ServiceKey) -> bool:
        return self._levels.get(key, CAPACITY) >= 1.0

    def keep(self, keys: Collection[ServiceKey]) -> None:
        """Forget services that are gone."""
        self._levels = {key: level for key, level in self._levels.items() if key in keys}
