"""The tokens that each API key has used in the calendar month (UTC), in all gateway pods together. Pure: the clock is an argument.

Each gateway process counts what it settles, in a counter of its own that only grows. Gateways tell each other every counter that
they know, and of two values of one counter the larger is the newer (a grow-only counter: Shapiro et al., "Conflict-free Replicated
Data Types", SSS 2011). So a key's tokens are the sum over the counters, in whatever order messages come, and those of a process that
is gone are kept by the others.
"""

from __future__ import annotations

import calendar
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

MAX_TOKENS = 1 << 53
KEPT_SECONDS = 35 * 86_400.0  # after which a month is over for certain: a clock that was set forward may be set back
MAX_COUNTERS, MAX_KEYS = 1_000, 10_000  # processes of one month, and keys of one process, that are believed
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")

Counters = dict[str, dict[str, dict[str, int]]]  # tokens by month, process and key


@dataclass(frozen=True)
class Spent:
    """A key that has used its budget of a month."""

    key: str
    tokens: int  # the budget
    month: str  # such as 2026-11
    seconds: float  # until the next one


class Budgets:
    """`process` is the name of this gateway's counter, which no process has had before. `clock`: seconds of the epoch."""

    def __init__(self, process: str = "", clock: Callable[[], float] = time.time) -> None:
        self._process, self._clock = process, clock
        self._counters: Counters = {}
        self._changed: set[tuple[str, str]] = set()  # months and keys of which this gateway has counted more

    @property
    def month(self) -> str:
        return _month(self._clock())

    def spent(self, key: str, tokens: int) -> Spent | None:
        """Return what refuses a key with this budget, None while it has some left. 0: it has no budget."""
        if not tokens or self.used(key) < tokens:
            return None
        now = time.gmtime(self._clock())
        following = (now.tm_year + now.tm_mon // 12, now.tm_mon % 12 + 1, 1, 0, 0, 0)
        return Spent(key, tokens, self.month, calendar.timegm(following) - self._clock())

    def used(self, key: str) -> int:
        """Return the tokens that a key has used in this month."""
        return sum(counts.get(key, 0) for counts in self._counters.get(self.month, {}).values())

    def totals(self) -> Mapping[str, int]:
        """Return the tokens of this month by key."""
        total: Counter[str] = Counter()
        for counts in self._counters.get(self.month, {}).values():
            total.update(counts)
        return total

    def add(self, key: str, tokens: int) -> None:
        """Count tokens that a key has used."""
        month = self.month
        counts = self._counters.setdefault(month, {}).setdefault(self._process, {})
        counts[key] = counts.get(key, 0) + max(0, tokens)
        self._changed.add((month, key))

    def all(self) -> Counters:
        """Return every counter that is known, for another gateway or a file."""
        return self._counters

    def copy(self) -> Counters:
        """Return the same as `all`, which what is counted later does not change."""
        return {
            month: {process: dict(counts) for process, counts in processes.items()}
            for month, processes in self._counters.items()
        }

    def take_changed(self) -> Counters:
        """Return what of this gateway's own counter has changed since the last call."""
        changed, self._changed = self._changed, set()
        found: Counters = {}
        for month, key in changed:
            own = self._counters.get(month, {}).get(self._process, {})
            if key in own:
                found.setdefault(month, {}).setdefault(self._process, {})[key] = own[key]
        return found

    def hear(self, counters: object) -> None:
        """Take over counters. Total: what is malformed, or of a month that is over, is left out."""
        for month, processes in _items(counters):
            if not _MONTH.fullmatch(month) or month < self.month:
                continue
            known = self._counters.setdefault(month, {})
            for process, counts in _items(processes):
                if process not in known and len(known) >= MAX_COUNTERS:
                    continue
                own = known.setdefault(process, {})
                for key, tokens in _items(counts):
                    if type(tokens) is int and 0 <= tokens <= MAX_TOKENS and (key in own or len(own) < MAX_KEYS):
                        own[key] = max(own.get(key, 0), tokens)

    def forget_past(self) -> None:
        """Forget months that are over for long."""
        oldest = _month(self._clock() - KEPT_SECONDS)
        for month in [month for month in self._counters if month < oldest]:
            del self._counters[month]

    def retain(self, keys: Collection[str]) -> None:
        """Forget keys that are not among `keys`, which are those in force."""
        for processes in self._counters.values():
            for process, counts in processes.items():
                processes[process] = {key: tokens for key, tokens in counts.items() if key in keys}


def _month(seconds: float) -> str:
    return time.strftime("%Y-%m", time.gmtime(seconds))


def _items(value: object) -> list[tuple[str, object]]:
    return [(key, one) for key, one in value.items() if isinstance(key, str)] if isinstance(value, Mapping) else []
