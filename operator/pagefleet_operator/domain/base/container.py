"""What every container that the operator makes has in common, whatever runs in it. Each call returns objects of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def restricted() -> dict[str, Any]:
    """Return the securityContext that the Pod Security level "restricted" asks for, with a root file system that is read-only."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }


def http_probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    """Return a probe of the port `http`: every `period` seconds, failed after so many failures in a row."""
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
        "successThreshold": 1,
    }


def variables(own: Iterable[Mapping[str, Any]], given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return our variables that are not given, and then those of the spec in its order: $(NAME) stands for a variable before."""
    after = {entry["name"]: dict(entry) for entry in given}
    return [*(dict(entry) for entry in own if entry["name"] not in after), *after.values()]
