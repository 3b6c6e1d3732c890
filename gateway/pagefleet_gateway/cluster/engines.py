"""Where a pod's engine listens and what its metrics are called, as the operator wrote it to the pod's annotation.

Total: an annotation that cannot be read makes a pod whose load is not known, never one that is not met. The operator's
side is `domain/runtimes/metrics.py`; tests/contract holds the two together.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

ANNOTATION = "pagefleet.io/engine"
DEFAULT_PORT = 8000
_SELECTOR = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([a-zA-Z_][a-zA-Z0-9_]*)(?:="([^"{}\\]*)")?\})?')
_VALUE = rb"(?:\{[^}\n]*\})? ([0-9.eE+-]+)(?: [0-9]+)?[ \t\r]*$"


@dataclass(frozen=True)
class Reader:
    """Finds one number on a metrics page: `pattern` has its value, of each series, as the only group."""

    pattern: re.Pattern[bytes]

    def values(self, text: bytes) -> list[float]:
        """Raises ValueError for what is no number."""
        return [float(value) for value in self.pattern.findall(text)]


@dataclass(frozen=True)
class Engine:
    """`known` False: nobody says what the metrics are called, so they are not asked for. None: the engine does not tell
    that number. All None: Pagefleet's own engine, or vLLM behind an InferencePool, read by their well-known names."""

    port: int = DEFAULT_PORT
    path: str = "/metrics"
    known: bool = True
    running: Reader | None = None
    waiting: Reader | None = None
    usage: Reader | None = None
    pages: Reader | None = None
    free: Reader | None = None
    cached: Reader | None = None


OURS = Engine()


@functools.lru_cache(1024)
def engine_from(text: str) -> Engine:
    """Of an annotation's text; "" is ours."""
    if not text:
        return OURS
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return Engine(known=False)
    port = document.get("port") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or not isinstance(port, int) or not 0 < port < 65536:
        return Engine(known=False)
    metrics = document.get("metrics")
    if not isinstance(metrics, Mapping):
        return Engine(port, known=False)
    path = metrics.get("path", "/metrics")
    named = {name: _reader(metrics.get(key)) for name, key in _NAMES.items()}
    if named["running"] is None or named["waiting"] is None or not isinstance(path, str):
        return Engine(port, known=False)
    return Engine(port, path, True, **named)


_NAMES = {
    "running": "running",
    "waiting": "waiting",
    "usage": "kvUsage",
    "pages": "kvPages",
    "free": "kvPagesFree",
    "cached": "kvPagesCached",
}


def _reader(text: object) -> Reader | None:
    found = _SELECTOR.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    name, label, value = (re.escape(part.encode()) if part is not None else None for part in found.groups())
    if name is None:
        return None
    if label is None:
        return Reader(re.compile(rb"^" + name + _VALUE, re.MULTILINE))
    within = rb"^" + name + rb"\{(?:[^}\n]*,)?" + label + rb'="'
    if value is None:
        return Reader(re.compile(within + rb'([^"\n]*)"', re.MULTILINE))
    return Reader(re.compile(within + value + rb'"[^}\n]*\} ([0-9.eE+-]+)', re.MULTILINE))
