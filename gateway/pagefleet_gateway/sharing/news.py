"""What one gateway pod tells the others, and what it takes over from them. No I/O; the time is an argument.

`pods` of a message has the rows of in_flight.py by the pods' uids, `whole` states whether they are all, and `prefixes` has block
hashes by the pods' caches. Total: what is malformed is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.prefixes import Prefixes


@dataclass(frozen=True)
class News:
    """What has changed at a gateway, or with `whole` everything that it has in flight."""

    pods: Mapping[str, list[int]]
    prefixes: Mapping[str, bytes]
    whole: bool = False

    def __bool__(self) -> bool:
        return bool(self.pods or self.prefixes)


class Newsroom:
    """The news of one gateway pod. Its ledger and prefixes are read, and what other pods tell is added to them."""

    def __init__(self, ledger: Ledger, prefixes: Prefixes) -> None:
        self._ledger, self._prefixes = ledger, prefixes

    def everything(self) -> News:
        """Return what another gateway hears first."""
        return News(self._ledger.rows(), self._prefixes.latest(), whole=True)

    def changes(self) -> News:
        """Return what has changed since the last call."""
        return News(self._ledger.take_changed(), self._prefixes.take_news())

    def take_over(self, gateway: str, pods: object, prefixes: object, now: float, *, whole: bool = False) -> None:
        """Take over what another gateway tells."""
        if whole:
            self._ledger.others.replace(gateway, pods)
        else:
            self._ledger.hear(gateway, pods, now)
        for cache, hashes in prefixes.items() if isinstance(prefixes, Mapping) else ():
            if isinstance(cache, str) and isinstance(hashes, bytes):
                self._prefixes.hear(cache, hashes)

    def forget(self, gateway: str) -> None:
        """Forget the requests of a gateway that is gone or silent."""
        self._ledger.others.forget(gateway)
