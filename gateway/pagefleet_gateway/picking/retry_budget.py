"""Retries as a share of requests, by service: a fleet that fails as a whole does not get three times the requests. Pure.

Source: retry budgets of Finagle (Twitter, RetryBudget), without its clock.
"""

from __future__ import annotations

from collections.abc import Container

from pagefleet_gateway.cluster.service import ServiceKey
from pagefleet_gateway.cluster.steps import Steps, forget

CAPACITY = 100.0  # retries that may come at once
DEPOSIT = 0.5  # of a retry, for each answered request


class RetryBudgets:
    """A service begins with a full budget. Each answered request adds DEPOSIT to it, each retry takes 1."""

    def __init__(self) -> None:
        self._levels: dict[ServiceKey, float] = {}

    def settle(self, key: ServiceKey, retries: int, answered: bool) -> None:
        """Account for a request that is over after `retries` retries."""
        if not retries and (answered and key not in self._levels):
            return  # full, and stays full
        level = self._levels.get(key, CAPACITY) + (DEPOSIT if answered else 0.0) - retries
        self._levels[key] = max(0.0, min(level, CAPACITY))

    def allows(self, key: ServiceKey) -> bool:
        return self._levels.get(key, CAPACITY) >= 1.0

    def retain(self, keys: Container[ServiceKey]) -> Steps:
        """Forget services that are not among `keys`."""
        return forget(self._levels, keys)
