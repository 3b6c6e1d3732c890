"""Moves cached KV pages that the device's pool gives up to bounded memory on the host, and back on a prefix hit. Pure.

The pool decides and does the accounting. `moves` lists the copies to make, in this order, before the next step runs. A page
that was copied back stays on the host as well, so giving it up again costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagefleet_engine.core.blocks import PageError, PagePool

if TYPE_CHECKING:
    from pagefleet_engine.core.kv_events import Journal

OUT, IN = 0, 1
Move = tuple[int, int, int]  # OUT or IN, page, place on the host


class HostIndex:
    """`places` pages by hash, the least recently used first."""

    def __init__(self, places: int) -> None:
        if places < 1:
            raise PageError(f"a host pool needs at least one place, not {places}")
        self.places = places
        self._free: deque[int] = deque(range(places))
        self._place_of: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._place_of)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._place_of

    def put(self, digest: bytes) -> int | None:
        """The place to copy a page to, in place of the least recently used; None when it is here or all are lent."""
        if digest in self._place_of:
            self._place_of.move_to_end(digest)
            return None
        if not self._free:
            if not self._place_of:
                return None
            _, place = self._place_of.popitem(last=False)
            self._free.append(place)
        place = self._place_of[digest] = self._free.popleft()
        return place

    def lend(self, digest: bytes) -> int:
        """The place of a page that is here. Nobody else gets the place until it is given back."""
        return self._place_of.pop(digest)

    def give_back(self, digest: bytes, place: int) -> None:
        self._place_of[digest] = place

    def check(self) -> None:
        """Raises PageError unless each place is free or holds exactly one page."""
        if sorted([*self._free, *self._place_of.values()]) != list(range(self.places)):
            raise PageError("a place on the host is lost or used twice")


class OffloadPool(PagePool):
    """A PagePool that stores on the host the pages that it gives up. The caller that copies `moves` clears them."""

    def __init__(self, total: int, places: int, pinnable: int = 0, journal: Journal | None = None) -> None:
        super().__init__(total, pinnable, journal)
        self.host = HostIndex(places)
        self.moves: list[Move] = []

    def allocate(self, count: int) -> list[int]:
        """`count` pages with one owner each. Raises OutOfPages."""
        if self.blank < count <= self.available:
            for page, digest in self.oldest(count - self.blank):
                place = self.host.put(digest)
                if place is not None:
                    self.moves.append((OUT, page, place))
        return super().allocate(count)

    def fetch(self, hashes: Sequence[bytes], spare: int) -> tuple[list[int], list[int]]:
        """Pages, held once more, for as many of `hashes` from the first on as are known; leaves `spare` available.

        Returns beside them the places in `hashes` of those that came back from the host.
        Behind a page that only the host has there may be some that are still on the device.
        """
        pages: list[int] = []
        back: list[int] = []
        for at, digest in enumerate(hashes):
            if self.available <= spare:
                break
            if here := self.find([digest]):
                self.hold(here)
                pages += here
                continue
            if digest not in self.host:
                break
            place = self.host.lend(digest)
            (page,) = self.allocate(1)
            self.moves.append((IN, page, place))
            self.host.give_back(digest, place)
            if self.register(page, digest):
                back.append(at)
            pages.append(page)
        return pages, back

    def check(self) -> None:
        """Raises PageError as PagePool's, or when the host's places do not add up."""
        super().check()
        self.host.check()
