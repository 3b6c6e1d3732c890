"""The stored evidence of the signals that count failures (`analysis.failures`): a part of the rollout's record in `status`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FailureTotals:
    """Requests and failures of both revisions. `retried` failures of the canary were tried again on another pod.

    `fell_back` are requests of the canary that another service answered, which are in no other number.
    """

    stable: int = 0
    stable_failed: int = 0
    canary: int = 0
    canary_failed: int = 0
    retried: int = 0
    fell_back: int = 0


@dataclass(frozen=True)
class FailureRecord:
    """The evidence of a signal that counts failures: all that is needed of the periods before number `until`.

    It is of the requests of `source` since the time `since`, against the revision `against`. `limit` is the accepted share
    (`analysis.failures`). For an absolute bound of a latency, the failures are the requests that are slower.
    `recent` are the counts since `recent_from`, the period from which on failures have been too many; `excess` says how
    much too many. `near` and `far` are the stable's failures and requests, with the older ones counted less and less.
    `absolute` and `relative` are logarithms of evidence for several alternatives, after so many blocks.
    """

    signal: str = ""
    source: str = ""
    against: str = ""
    since: float = 0.0
    limit: float = 0.0
    until: int = 0
    total: FailureTotals = field(default_factory=FailureTotals)
    recent: FailureTotals = field(default_factory=FailureTotals)
    recent_from: int = 0
    excess: float = 0.0
    near: tuple[float, ...] = ()
    far: tuple[float, ...] = ()
    absolute: tuple[float, ...] = ()
    absolute_blocks: int = 0
    relative: tuple[float, ...] = ()
    relative_blocks: int = 0
