"""The pinned prefixes: by the name of each pin the hashes of its pages, and until when they are kept. Pure.

A pin names contents, not pages. So it holds for a page that is computed after the pin was made, and for one that comes
back from the host's memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_PINS = 4096


class PinRefused(ValueError):
    """A pin has no room. Nothing has changed."""


@dataclass(frozen=True)
class Pin:
    hashes: tuple[bytes, ...]
    until: float


class Pins:
    """At most `most` pages are pinned. A page that several pins name counts once."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._pins: dict[str, Pin] = {}
        self._count: dict[bytes, int] = {}  # of the pins that name each hash

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._count

    @property
    def pages(self) -> int:
        return len(self._count)

    def add(self, name: str, hashes: Sequence[bytes], until: float) -> list[bytes]:
        """Pin `hashes`; a pin of this name with the same ones lasts until the later time. Raises PinRefused.

        Return the hashes that no pin named before, in order.
        """
        known = self._pins.get(name)
        if known is not None and known.hashes == tuple(hashes):
            self._pins[name] = Pin(known.hashes, max(known.until, until))
            return []
        if known is not None:
            raise PinRefused(f"the pin {name} is of another prefix")
        added = [digest for digest in hashes if digest not in self._count]
        if self.pages + len(added) > self.most:
            raise PinRefused(
                f"the prompt would pin {len(added)} more pages; {self.pages} of at most {self.most} pages are pinned"
            )
        if len(self._pins) >= MAX_PINS:
            raise PinRefused(f"{MAX_PINS} prompts are pinned, which is the most")
        self._pins[name] = Pin(tuple(hashes), until)
        for digest in hashes:
            self._count[digest] = self._count.get(digest, 0) + 1
        return added

    def remove(self, name: str) -> list[bytes]:
        """Forget a pin, known or not. Return the hashes that no pin names any more, in order."""
        pin = self._pins.pop(name, None)
        freed = []
        for digest in pin.hashes if pin is not None else ():
            self._count[digest] -= 1
            if not self._count[digest]:
                del self._count[digest]
                freed.append(digest)
        return freed

    def late(self, now: float) -> list[str]:
        """Return the names of the pins whose time is over."""
        return [name for name, pin in self._pins.items() if pin.until <= now]

    def next_end(self) -> float | None:
        """Return when the first pin ends; None when none does."""
        ends: Iterable[float] = (pin.until for pin in self._pins.values() if pin.until < math.inf)
        return min(ends, default=None)
