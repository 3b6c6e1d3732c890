"""The log of the server: JSON lines on stdout, and a start-up failure's cause where Kubernetes looks for it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

EXIT_CONFIGURATION = 78


def log(level: str, message: str, **fields: object) -> None:
    """One line; fields that are None are left out."""
    line = {"time": round(time.time(), 3), "level": level, "message": message, **fields}
    print(json.dumps({name: value for name, value in line.items() if value is not None}), flush=True)  # noqa: T201


def explain(field: str, message: str) -> int:
    """Report to the user what to fix, on stderr and in the pod's termination message. Returns the exit status."""
    print(f"pagefleet-engine: {field}: {message}", file=sys.stderr, flush=True)  # noqa: T201
    path = Path(os.environ.get("PAGEFLEET_TERMINATION_LOG", "/dev/termination-log"))
    with contextlib.suppress(OSError):
        path.write_text(json.dumps({"field": field, "message": message}))
    return EXIT_CONFIGURATION
