"""A service's InferencePool, of inference.networking.k8s.io/v1: all its pods, and our picker to choose among them.

One pool holds every revision, because the endpoint-picker protocol does not state the pool that a request was sent to.
The picker splits by `.status.traffic` itself, exactly and stickily, and its pick must be within the pool.
Source: https://gateway-api-inference-extension.sigs.k8s.io/reference/spec (v1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.names import ENGINE_PORT, MANAGED, MANAGED_LABEL, SERVICE_LABEL
from pagefleet_operator.domain.spec.traffic import EndpointPicker
from pagefleet_operator.domain.status.gateway_api import POOL_GROUP, POOL_KIND


def inference_pool(metadata: Mapping[str, Any], version: str, picker: EndpointPicker) -> dict[str, Any]:
    """Build the InferencePool of a service, of the served `version`."""
    return {
        "apiVersion": f"{POOL_GROUP}/{version}",
        "kind": POOL_KIND,
        "metadata": dict(metadata),
        "spec": {
            "selector": {
                "matchLabels": {MANAGED_LABEL: MANAGED, SERVICE_LABEL: metadata["name"]},
            },
            "targetPorts": [{"number": ENGINE_PORT}],
            "endpointPickerRef": {
                "kind": "Service",
                "name": picker.service,
                "port": {"number": picker.port},
                "failureMode": picker.failure_mode,
            },
        },
    }
