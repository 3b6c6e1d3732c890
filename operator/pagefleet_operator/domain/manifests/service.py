"""A revision's Service: a stable name for its ready pods. Our gateway picks pods itself and does not use it."""

from __future__ import annotations

from typing import Any

from pagefleet_operator.domain.base.child import Child


def service(child: Child) -> dict[str, Any]:
    """Build the Service of a revision."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child.metadata(),
        "spec": {
            "type": "ClusterIP",
            "selector": child.selector,
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
        },
    }
