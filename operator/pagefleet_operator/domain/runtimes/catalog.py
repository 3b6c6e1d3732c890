"""Which runtime a revision asks for, and what that runtime says of itself. Decides nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.runtime import runtime_name
from pagefleet_operator.domain.runtimes import custom, pagefleet, sglang, tgi, vllm
from pagefleet_operator.domain.runtimes.launch import Launch
from pagefleet_operator.domain.runtimes.node import Node, NodeLaunch


class Runtime(StrEnum):
    PAGEFLEET = "pagefleet"
    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    CUSTOM = "custom"


def runtime_of(spec: Mapping[str, Any]) -> Runtime:
    """Of a spec, or of a revision's snapshot."""
    return Runtime(runtime_name(spec))


def launch_of(child: Child, release: str) -> Launch:
    """`release`: the operator's version."""
    match runtime_of(child.snapshot):
        case Runtime.PAGEFLEET:
            return pagefleet.launch(child, release)
        case Runtime.VLLM:
            return vllm.launch(child)
        case Runtime.SGLANG:
            return sglang.launch(child)
        case Runtime.TGI:
            return tgi.launch(child)
        case Runtime.CUSTOM:
            return custom.launch(child)


def node_launch_of(snapshot: Mapping[str, Any], node: Node) -> NodeLaunch:
    """TGI runs on one node (rules_runtime.py); a custom runtime's arguments name the controller's variables themselves."""
    match runtime_of(snapshot):
        case Runtime.PAGEFLEET:
            return pagefleet.node_launch(node)
        case Runtime.VLLM:
            return vllm.node_launch(snapshot, node)
        case Runtime.SGLANG:
            return sglang.node_launch(snapshot, node)
        case Runtime.TGI | Runtime.CUSTOM:
            return NodeLaunch()


def images_of(runtime: Runtime) -> Mapping[str, str]:
    """The default images of others' engines by accelerator ("" without one); a name that is missing has none."""
    match runtime:
        case Runtime.VLLM:
            return vllm.IMAGES
        case Runtime.SGLANG:
            return sglang.IMAGES
        case Runtime.TGI:
            return tgi.IMAGES
        case Runtime.PAGEFLEET | Runtime.CUSTOM:
            return {}


def owned_flags(runtime: Runtime) -> Mapping[str, str]:
    """Flags that the operator writes for others' engines, with the field that says their value ("": none does)."""
    shared = {
        "--model": "spec.model.source",
        "--served-model-name": "spec.model.servedName",
        "--host": "",
        "--port": "",
    }
    match runtime:
        case Runtime.VLLM:
            return shared | vllm.OWNED
        case Runtime.SGLANG:
            return shared | sglang.OWNED
        case Runtime.TGI:
            return shared | tgi.OWNED
        case Runtime.PAGEFLEET | Runtime.CUSTOM:
            return {}


def shared_flags(runtime: Runtime) -> Mapping[str, tuple[str, ...]]:
    """Flags that may stand in engine.args as well, but not in both places."""
    slots, tokens = ("engine", "scheduling", "maxSequences"), ("engine", "scheduling", "tokensPerStep")
    match runtime:
        case Runtime.PAGEFLEET | Runtime.VLLM:
            return {"--max-num-seqs": slots, "--max-num-batched-tokens": tokens}
        case Runtime.SGLANG:
            return {sglang.SLOTS_FLAG: slots, "--max-prefill-tokens": tokens}
        case Runtime.TGI:
            return {tgi.SLOTS_FLAG: slots, "--max-batch-prefill-tokens": tokens}
        case Runtime.CUSTOM:
            return {}


def slots_of(snapshot: Mapping[str, Any]) -> int | None:
    """Sequences that a replica runs at once; None when another's engine decides by itself."""
    engine: Mapping[str, Any] = snapshot.get("engine") or {}
    given = (engine.get("scheduling") or {}).get("maxSequences")
    if given is not None:
        return int(given)
    flag, otherwise = _slots(runtime_of(snapshot))
    arguments = engine.get("args") or ()
    for argument, after in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, _, value = argument.partition("=")
        if flag and name == flag and (value or after).isdigit():
            return int(value or after)
    return otherwise


def _slots(runtime: Runtime) -> tuple[str, int | None]:
    """The flag that sets them, and what they are without it."""
    match runtime:
        case Runtime.PAGEFLEET:
            return pagefleet.SLOTS_FLAG, pagefleet.SLOTS
        case Runtime.VLLM:
            return vllm.SLOTS_FLAG, None
        case Runtime.SGLANG:
            return sglang.SLOTS_FLAG, None
        case Runtime.TGI:
            return tgi.SLOTS_FLAG, None
        case Runtime.CUSTOM:
            return "", None
