"""Sets how often Python looks for objects that refer to each other and that nobody else needs.

A decision makes some ten thousand objects that are gone by its end without that search. Python's default searches after every
700, and in the whole heap after every 70,000: a tenth of the operator's processor time.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 20_000, 20, 20  # new objects before a search, and searches before one among older objects


def search_less() -> None:
    """What is there by now stays, and is not searched again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
