"""What earlier decisions have added up, so that the next one adds only what is new. A memo: with it or without it, and
whatever was asked before, the answer is the same; only the work differs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import MutableMapping
from dataclasses import dataclass
from operator import attrgetter

from pagefleet_operator.domain.analysis.fold import Fold, Scope
from pagefleet_operator.domain.status.observation import Slice

START = attrgetter("start")
SETTLED_SECONDS = 20.0  # slices of a gateway that answers so much later than the others still only add to what there is


@dataclass(frozen=True)
class Kept:
    """`fold` has everything of `slices` in it, and nothing else. `added`: how many the last call added up."""

    scope: Scope
    slices: list[Slice]
    fold: Fold
    added: int


def folded(memo: MutableMapping[str, object], source: str, scope: Scope, ordered: list[Slice]) -> Fold:
    """Slices in the order of time, added up by `scope`. What is old is taken from the memo where it is still the
    same; what is new may yet change its order, and is added to a copy."""
    kept = memo.pop(source, None)  # not there while it is being changed: what fails halfway must not stay
    if not isinstance(kept, Kept) or kept.scope != scope or ordered[: len(kept.slices)] != kept.slices:
        kept = Kept(scope, [], Fold(scope), 0)
    done = len(kept.slices)
    settled = bisect_left(ordered, ordered[-1].start - SETTLED_SECONDS, key=START) if ordered else 0
    for piece in ordered[done:settled]:
        kept.fold.add(piece)
    until = max(done, settled)
    memo[source] = Kept(scope, ordered[:until], kept.fold, len(ordered) - done)
    newest = kept.fold.copied()
    for piece in ordered[until:]:
        newest.add(piece)
    newest.flush()
    return newest
