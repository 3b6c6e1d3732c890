"""The registry of engines, and what is looked up in it. A new engine is one module with an Adapter and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.runtime import runtime_name
from pagefleet_operator.domain.runtimes import custom, pagefleet, sglang, tgi, vllm
from pagefleet_operator.domain.runtimes.adapter import Adapter
from pagefleet_operator.domain.runtimes.launch import Launch
from pagefleet_operator.domain.runtimes.node import Node, NodeLaunch

REGISTRY: Mapping[str, Adapter] = {
    adapter.name: adapter for adapter in (pagefleet.ADAPTER, vllm.ADAPTER, sglang.ADAPTER, tgi.ADAPTER, custom.ADAPTER)
}


def adapter_of(spec: Mapping[str, Any]) -> Adapter:
    """The engine of a spec, or of a revision's snapshot. Raises KeyError for a name that the schema refuses."""
    return REGISTRY[runtime_name(spec)]


def launch_of(child: Child, release: str) -> Launch:
    """How a replica's container is started. `release` is the operator's version."""
    return adapter_of(child.snapshot).launch(child, release)


def node_launch_of(snapshot: Mapping[str, Any], node: Node) -> NodeLaunch:
    """What one pod of a group adds to its container's command line."""
    return adapter_of(snapshot).node_launch(snapshot, node)


def slots_of(snapshot: Mapping[str, Any]) -> int | None:
    """Sequences that a replica runs at once; None when another's engine decides by itself."""
    engine: Mapping[str, Any] = snapshot.get("engine") or {}
    given = (engine.get("scheduling") or {}).get("maxSequences")
    if given is not None:
        return int(given)
    adapter = adapter_of(snapshot)
    arguments = engine.get("args") or ()
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, _, value = argument.partition("=")
        if adapter.slots_flag and name == adapter.slots_flag and (value or following).isdigit():
            return int(value or following)
    return adapter.slots
