"""Responses that a client may go on with or fetch again, in memory: bounded in number and bytes, each client its own. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_RESPONSES, MAX_BYTES = 4096, 64 << 20
# Of one client, so that one cannot push out all others' responses.
MAX_OWN_RESPONSES, MAX_OWN_BYTES = 1024, 16 << 20


@dataclass(frozen=True)
class Stored:
    """`items`: the conversation up to and with this response, as input items. `size`: about its bytes as JSON."""

    document: Mapping[str, Any]
    items: tuple[Any, ...]
    size: int


class Store:
    """`owner`: who may see a response, a digest of the API key. The oldest go first."""

    def __init__(
        self,
        most: int = MAX_RESPONSES,
        size: int = MAX_BYTES,
        own: int = MAX_OWN_RESPONSES,
        own_size: int = MAX_OWN_BYTES,
    ) -> None:
        self._most, self._size, self._own, self._own_size = most, size, own, own_size
        self._of: OrderedDict[bytes, OrderedDict[str, Stored]] = OrderedDict()
        self._sizes: dict[bytes, int] = {}

    def add(self, owner: bytes, id: str, stored: Stored) -> None:
        """A response larger than one client may store is not stored."""
        if stored.size > self._own_size:
            return
        own = self._of.setdefault(owner, OrderedDict())
        self.remove(owner, id)
        own = self._of.setdefault(owner, own)
        own[id] = stored
        self._sizes[owner] = self._sizes.get(owner, 0) + stored.size
        while len(own) > self._own or self._sizes[owner] > self._own_size:
            self.remove(owner, next(iter(own)))
        while sum(map(len, self._of.values())) > self._most or sum(self._sizes.values()) > self._size:
            largest = max(self._sizes, key=lambda one: self._sizes[one])
            self.remove(largest, next(iter(self._of[largest])))

    def get(self, owner: bytes, id: str) -> Stored | None:
        own = self._of.get(owner)
        return own.get(id) if own is not None else None

    def remove(self, owner: bytes, id: str) -> bool:
        """Return whether it was there."""
        own = self._of.get(owner)
        stored = own.pop(id, None) if own is not None else None
        if own is None or stored is None:
            return False
        self._sizes[owner] -= stored.size
        if not own:
            del self._of[owner], self._sizes[owner]
        return True
