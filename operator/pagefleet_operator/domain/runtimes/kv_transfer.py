"""The flag, the port and the variables of an engine that takes KV pages from others and gives its own (spec.engine.disaggregation), in
vLLM's form. Pure.

Prefill and decode pods differ in the role that the flag names. A decode engine that cannot fetch the pages computes the prompt itself.
Source: vLLM 0.32, NixlConnector.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pagefleet_contract.names import KV_TRANSFER_PORT
from pagefleet_operator.domain.base.revision_spec import RevisionSpec
from pagefleet_operator.domain.runtimes.launch import pod_ip

DECODE_ROLE, PREFILL_ROLE = "kv_consumer", "kv_producer"
FLAG, FIELD = "--kv-transfer-config", ("engine", "disaggregation")
PORT = {"name": "kv-transfer", "containerPort": KV_TRANSFER_PORT, "protocol": "TCP"}


def config(spec: RevisionSpec) -> str | None:
    """Return the flag's value in a decode pod, None where prefill and decode are in one pod."""
    if spec.engine.disaggregation is None:
        return None
    values = {"kv_connector": "NixlConnector", "kv_role": DECODE_ROLE, "kv_load_failure_policy": "recompute"}
    return json.dumps(values, separators=(",", ":"))


def of_prefill(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a decode pod's engine as those of a prefill pod's."""
    return [one.replace(DECODE_ROLE, PREFILL_ROLE) if one.startswith(f"{FLAG}=") else one for one in arguments]


def env(spec: RevisionSpec) -> tuple[dict[str, Any], ...]:
    """Where other pods' engines reach this one."""
    if spec.engine.disaggregation is None:
        return ()
    return (
        pod_ip("VLLM_NIXL_SIDE_CHANNEL_HOST"),
        {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(KV_TRANSFER_PORT)},
    )


def ports(spec: RevisionSpec) -> list[dict[str, Any]]:
    return [] if spec.engine.disaggregation is None else [dict(PORT)]
