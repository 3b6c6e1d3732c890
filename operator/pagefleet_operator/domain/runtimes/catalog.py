"""The registry of engines, and what is looked up in it. A new engine is one module with an Adapter and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import RevisionSpec
from pagefleet_operator.domain.runtimes import custom, pagefleet, sglang, tgi, vllm
from pagefleet_operator.domain.runtimes.adapter import Adapter
from pagefleet_operator.domain.runtimes.launch import Launch, flag_name
from pagefleet_operator.domain.runtimes.node import Node, NodeLaunch

REGISTRY: Mapping[str, Adapter] = {
    adapter.name: adapter for adapter in (pagefleet.ADAPTER, vllm.ADAPTER, sglang.ADAPTER, tgi.ADAPTER, custom.ADAPTER)
}


def adapter_of(spec: RevisionSpec) -> Adapter:
    """The engine of a spec. Raises KeyError for a name that the schema refuses."""
    return REGISTRY[spec.engine.runtime]


def launch_of(child: Child, release: str) -> Launch:
    """How a replica's container is started. `release` is the operator's version."""
    return adapter_of(child.spec).launch(child, release)


def node_launch_of(spec: RevisionSpec, node: Node) -> NodeLaunch:
    """What one pod of a group adds to its container's command line."""
    return adapter_of(spec).node_launch(spec, node)


def slots_of(spec: RevisionSpec) -> int | None:
    """Sequences that a replica runs at once; None when another's engine decides by itself."""
    given = spec.engine.scheduling.max_sequences
    if given is not None:
        return given
    adapter, arguments = adapter_of(spec), spec.engine.args
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        value = argument.partition("=")[2] or following
        if not adapter.slots_flag or flag_name(argument) != adapter.slots_flag:
            continue
        if value.isdecimal() and len(value) < 10:  # any other text is left to the engine
            return int(value)
    return adapter.slots.get(spec.accelerator_name)


def can_sleep(spec: RevisionSpec) -> bool:
    """Whether a replica of this spec can be a warm spare; what a rule refuses for the present spec may stand in an earlier one."""
    engine, sleep = spec.engine, adapter_of(spec).sleep
    if sleep is None or engine.nodes > 1 or engine.api_key is not None or engine.disaggregation is not None:
        return False
    return not sleep.accelerators or spec.accelerator_name.startswith(sleep.accelerators)


def page_tokens_of(spec: RevisionSpec) -> int | None:
    """Tokens of each KV page that the engine reports; None where that is not known."""
    adapter = adapter_of(spec)
    return adapter.page_tokens or spec.engine.kv_cache.page_size or adapter.default_page_tokens
