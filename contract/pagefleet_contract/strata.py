"""Strata of requests by work: the tokens of a prompt that its pod has not cached, as estimated when the request is sent.

The gateway names a request's stratum, and the operator compares revisions within a stratum only. The estimate is made
before an engine has the request. An engine's own count of cached tokens must not choose the stratum: a canary whose
prefix cache is broken would then be compared with the stable's uncached prompts only, and would pass.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right

# Lower ends in tokens. Each is 2 ** 1.5 times the one before: a prompt of four times the work is in another stratum.
LOWER_ENDS = (0, 64, 181, 512, 1448, 4096, 11585, 32768, 92682)
STRATA = (
    *(f"{low}-{high - 1}" for low, high in itertools.pairwise(LOWER_ENDS)),
    f"{LOWER_ENDS[-1]}+",
)


def stratum(uncached_tokens: float) -> str:
    """Return the stratum of a prompt by its tokens that are not cached."""
    return STRATA[max(0, bisect_right(LOWER_ENDS, uncached_tokens) - 1)]


QUEUED = " queued"
FREE_STRATA, QUEUED_STRATA = STRATA, tuple(name + QUEUED for name in STRATA)


def load_stratum(tokens: float, queued: bool) -> str:
    """Return the load stratum of a request by the tokens that its pod computes until its first token.

    `queued`: some of them are of other requests. Their number is an estimate, so such requests are compared with their like.
    """
    return stratum(tokens) + QUEUED if queued else stratum(tokens)


def title(name: str) -> str:
    """Return the stratum for people; the name itself for one that this version does not know."""
    if name in STRATA:
        return f"{name} new prompt tokens"
    return name or "all prompts"
