"""The page pool: the owners of each KV page, the released pages that still hold a known prefix, the order of their reuse.

Pages are integers; their contents are the runner's. Automatic prefix caching follows vLLM's design: a full page is
known by the chained hash of all tokens up to its end; a released page keeps its hash and is reused in LRU order, unless
it is pinned (core/pins.py).
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pagefleet_engine.core.pins import Pins

if TYPE_CHECKING:
    from pagefleet_engine.core.kv_events import Journal


class PageError(RuntimeError):
    """A page was released, held or registered in a way that breaks the pool's invariants."""


class OutOfPages(RuntimeError):
    """Fewer pages are reclaimable than were asked for. The pool is unchanged."""


def page_hashes(tokens: Sequence[int], page_size: int, parent: bytes = b"", start: int = 0) -> list[bytes]:
    """Chained hashes of the full pages of `tokens[start:]`; `parent` is the hash of the page before `start`."""
    hashes = []
    for offset in range(start, len(tokens) - page_size + 1, page_size):
        content = array("q", tokens[offset : offset + page_size]).tobytes()
        parent = hashlib.blake2b(parent + content, digest_size=16).digest()
        hashes.append(parent)
    return hashes


def root_hash(salt: str, scope: str) -> bytes:
    """Return the hash that the first page is chained to: only requests with the same salt and scope share pages."""
    if not salt and not scope:
        return b""
    return hashlib.blake2b(f"{len(salt)}:{salt}{scope}".encode(), digest_size=16).digest()


class PagePool:
    """`total` pages. Every page is blank (free, unknown), cached (free, known by hash), kept (without an owner, but pinned: it
    is not reused) or held (by >= 1 owner). `pinnable` is how many pages may be pinned. `journal` learns which hashes are forgotten.
    """

    def __init__(self, total: int, pinnable: int = 0, journal: Journal | None = None) -> None:
        if total < 1:
            raise PageError(f"a pool needs at least one page, not {total}")
        self.total, self.pins, self.journal = total, Pins(pinnable), journal
        self._kept: set[int] = set()
        self._blank: deque[int] = deque(range(total))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._owners = [0] * total
        self._hash_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def blank(self) -> int:
        return len(self._blank)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def available(self) -> int:
        """Pages that an allocation can take now."""
        return len(self._blank) + len(self._cached)

    @property
    def owners(self) -> int:
        """Count the owners of all pages together."""
        return sum(self._owners)

    def allocate(self, count: int) -> list[int]:
        """`count` pages with one owner each. Raises OutOfPages."""
        if count > self.available:
            raise OutOfPages(f"{count} pages requested, {self.available} available of {self.total}")
        pages = []
        for _ in range(count):
            if self._blank:
                page = self._blank.popleft()
            else:
                page, _ = self._cached.popitem(last=False)
                digest = self._hash_of.pop(page)
                del self._page_of[digest]
                if self.journal is not None:
                    self.journal.removed(digest)
            self._owners[page] = 1
            pages.append(page)
        return pages

    def oldest(self, count: int) -> list[tuple[int, bytes]]:
        """Return the cached pages that are reused next, with their hashes."""
        return [(page, self._hash_of[page]) for page in islice(self._cached, count)]

    def hold(self, pages: Iterable[int]) -> None:
        """One more owner for pages that are held, cached or kept. Raises PageError for a blank page."""
        for page in pages:
            if self._owners[page] == 0:
                if page not in self._hash_of:
                    raise PageError(f"page {page} is blank: nothing in it to hold")
                self._cached.pop(page, None)
                self._kept.discard(page)
            self._owners[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One owner less, tail first: the head of a prefix is reused last. Raises PageError on a double free."""
        for page in reversed(pages):
            if self._owners[page] == 0:
                raise PageError(f"page {page} is released twice")
            self._owners[page] -= 1
            if self._owners[page] == 0:
                if page not in self._hash_of:
                    self._blank.append(page)
                elif self._hash_of[page] in self.pins:
                    self._kept.add(page)
                else:
                    self._cached[page] = None

    def pin(self, name: str, hashes: Sequence[bytes], until: float) -> None:
        """Keep the pages of these hashes, those to come too. Raises PinRefused."""
        for digest in self.pins.add(name, hashes, until):
            page = self._page_of.get(digest)
            if page is not None and page in self._cached:
                del self._cached[page]
                self._kept.add(page)

    def unpin(self, name: str) -> None:
        """Forget a pin, known or not: its pages are reused last, the head of its prefix after the tail."""
        for digest in reversed(self.pins.remove(name)):
            page = self._page_of.get(digest)
            if page is not None and page in self._kept:
                self._kept.remove(page)
                self._cached[page] = None

    def register(self, page: int, digest: bytes) -> bool:
        """Make a held, full page findable; whether it is now. The first page with a content keeps the name."""
        if self._owners[page] == 0:
            raise PageError(f"page {page} is not held: its content is not certain")
        if digest in self._page_of or page in self._hash_of:
            return False
        self._page_of[digest], self._hash_of[page] = page, digest
        return True

    @property
    def known(self) -> frozenset[bytes]:
        """The hashes by which pages are found."""
        return frozenset(self._page_of)

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """Pages of the longest known prefix of `hashes`."""
        pages = []
        for digest in hashes:
            page = self._page_of.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def check(self) -> None:
        """Raises PageError unless blank + cached + kept + held = total and every index agrees."""
        held = sum(1 for owners in self._owners if owners > 0)
        if self.blank + self.cached + self.kept + held != self.total:
            counted = f"{self.blank} blank + {self.cached} cached + {self.kept} kept + {held} held"
            raise PageError(f"{counted} != {self.total}")
        free = [*self._blank, *self._cached, *self._kept]
        if len(set(free)) != len(free) or any(self._owners[page] for page in free):
            raise PageError("a free page is listed twice or has an owner")
        if {page: digest for digest, page in self._page_of.items()} != self._hash_of:
            raise PageError("the hash index and the pages disagree")
        if any(page not in self._hash_of for page in (*self._cached, *self._kept)):
            raise PageError("a cached or kept page has no hash")
        if any(self._hash_of[page] in self.pins for page in self._cached):
            raise PageError("a pinned page may be reused")
        if any(self._hash_of[page] not in self.pins for page in self._kept):
            raise PageError("a page is kept without a pin")
        if self.pins.pages > self.pins.most:
            raise PageError(f"{self.pins.pages} pages are pinned, allowed are {self.pins.most}")
