"""W3C trace context: passed on as it came, begun here when there is none. Source: W3C Trace Context, level 1.

Where spans are sent (tracing.py), Envoy begins traces and passes its own span on. Elsewhere a trace that begins here is not
marked as sampled: nothing is recorded, and the access log names the trace.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from pagefleet_contract.headers import TRACEPARENT_HEADER

_VALID = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def new_traceparent(headers: Mapping[str, str], rng: random.Random) -> str | None:
    """Return a new `traceparent` for a request without a valid one; None when it has one."""
    if _VALID.fullmatch(headers.get(TRACEPARENT_HEADER, "")):
        return None
    return f"00-{rng.getrandbits(128) or 1:032x}-{rng.getrandbits(64) or 1:016x}-00"


def trace_id(header: str) -> str | None:
    """Return the trace's id in a `traceparent`; None in one that is not valid."""
    match = _VALID.fullmatch(header)
    return match[1] if match else None
