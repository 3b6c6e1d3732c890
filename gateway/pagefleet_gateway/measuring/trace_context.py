"""W3C trace context: passed on as it came, begun here when there is none. Source: W3C Trace Context, level 1.

Where spans are sent (tracing.py) Envoy begins traces and hands its own span on; else a trace that begins here is not marked
as sampled: nothing is recorded, the access log names the trace.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

_VALID = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def begun(headers: Mapping[str, str], rng: random.Random) -> str | None:
    """A new `traceparent` for a request that has none, or one that is not valid; None when it has one."""
    if _VALID.fullmatch(headers.get("traceparent", "")):
        return None
    return f"00-{rng.getrandbits(128) or 1:032x}-{rng.getrandbits(64) or 1:016x}-00"


def trace_id(header: str) -> str | None:
    """The trace's id in a `traceparent`; None in one that is not valid."""
    found = _VALID.fullmatch(header)
    return found[1] if found else None
