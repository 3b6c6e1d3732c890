"""Prefill and decode in pods of their own: the header by which the gateway names prefill pods to a decode pod's routing sidecar,
and what the sidecar says became of them. The operator, the gateway and the sidecar share it. Pure.

The header lists prefill pods of each revision that may get the request, as REVISION@IP:PORT with commas between them: one of each, or
two where decode pods compute no prompt themselves. A sidecar reads the entries of its own revision only, so both legs of a request are
of one revision whatever pod a retry goes to.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from pagefleet_contract.names import ENGINE_PORT

SPLIT_PATHS = ("/v1/chat/completions", "/v1/completions")  # the requests that may have a prefill leg
SIDECAR, SIDECAR_COMMAND = "routing-sidecar", "pagefleet-sidecar"  # the container in a decode pod, and its program
SPARE_FLAG = "--spare"  # of the program, in a warm spare
PROTOCOL_FLAG = "--protocol"
SIDECAR_LIVE_PATH = "/routing-sidecar/healthz"
SIDECAR_READY_PATH = "/routing-sidecar/readyz"  # of a warm spare: whether its engine is awake
DEFAULT_MIN_PROMPT_TOKENS = 512  # uncached tokens from which on a prompt is computed by a prefill pod
DEFAULT_PREFILL_TIMEOUT = "30s"
# How the two legs of a request meet, by the runtime whose protocol it is (PROTOCOL_FLAG).
KV_TRANSFER_PARAMS, BOOTSTRAP = "vllm", "sglang"
DEFAULT_PROTOCOL = KV_TRANSFER_PARAMS
MAX_PREFILL_REPLICAS = 256

# What becomes of the prefill leg of a request for which a prefill pod was named.
REMOTE = "remote"  # the prefill pod has computed the prompt
UNREACHED = "unreached"  # it could not be connected to, or it ended the connection
TIMEOUT = "timeout"  # it has not answered in spec.engine.disaggregation.prefill.timeout
FAILED = "failed"  # it answered 429, 5xx, or without the parameters of a transfer
REFUSED = "refused"  # it answered another 4xx, as the decode pod will
AVOIDED = "avoided"  # it failed this decode pod a moment ago, and was not asked
LOCAL = "local"  # a request of a kind that decode pods compute alone (several answers, batches of prompts)
UNNAMED = "unnamed"  # the gateway named none, and the decode pod computes no prompt itself
OUTCOMES = (REMOTE, UNREACHED, TIMEOUT, FAILED, REFUSED, AVOIDED, LOCAL, UNNAMED)
PREFILL_FAILURES = (UNREACHED, TIMEOUT, FAILED)  # of the prefill pod


def prefill_header(pods: Iterable[tuple[str, str]]) -> str:
    """Return the header's value for pairs of a revision and the ip:port of one of its prefill pods."""
    return ",".join(f"{revision}@{address}" for revision, address in pods)


def prefill_addresses(value: str, revision: str, port: int = ENGINE_PORT) -> tuple[str, ...]:
    """Return the ip:port of the revision's prefill pods, the best one first, without those that are no IP address with an engine's `port`."""
    entries = (entry.strip().partition("@") for entry in value.split(","))
    return tuple(address for named, _, address in entries if named and named == revision and _is_engine(address, port))


def _is_engine(address: str, port: int) -> bool:
    host, _, given = address.rpartition(":")
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return given == str(port)
