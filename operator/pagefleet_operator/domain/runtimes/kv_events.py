"""The flag, the ports and the variable of an engine that publishes KV events (spec.engine.kvCache.events), in vLLM's form. Pure.

The topic is the one that llm-d's readers take apart: kv@POD@MODEL. The kubelet puts the pod's address in the place of $(POD_IP).
"""

from __future__ import annotations

import json
from typing import Any

from pagefleet_contract.engine_options import EVENTS_FLAG
from pagefleet_contract.names import KV_EVENTS_PORT, KV_REPLAY_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import RevisionSpec
from pagefleet_operator.domain.runtimes.launch import pod_ip

FLAG, FIELD = EVENTS_FLAG, ("engine", "kvCache", "events")


def config(child: Child) -> str | None:
    """Return the flag's value, None where nothing is published."""
    if not child.spec.engine.kv_cache.events:
        return None
    values = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{KV_EVENTS_PORT}",
        "replay_endpoint": f"tcp://*:{KV_REPLAY_PORT}",
        "topic": f"kv@$(POD_IP)@{child.spec.model.served_name or child.service}",
    }
    return json.dumps(values, separators=(",", ":"))


def env(spec: RevisionSpec) -> tuple[dict[str, Any], ...]:
    if not spec.engine.kv_cache.events:
        return ()
    return (pod_ip("POD_IP"),)


def ports(spec: RevisionSpec) -> list[dict[str, Any]]:
    """Return the container's ports beside the one for HTTP."""
    named = (("kv-events", KV_EVENTS_PORT), ("kv-replay", KV_REPLAY_PORT)) if spec.engine.kv_cache.events else ()
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in named]
