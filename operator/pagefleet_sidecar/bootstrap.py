"""The two legs of a request to SGLang as bodies. Pure.

Both engines get the same request at once. Its `bootstrap_` fields say where they meet: the prefill pod's bootstrap server, and a
room that no other request has. Source: SGLang 0.5.23, `srt/disaggregation` and `OpenAIServingBase`; its own router sends the same.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from pagefleet_contract.names import KV_TRANSFER_PORT

HOST, PORT, ROOM = "bootstrap_host", "bootstrap_port", "bootstrap_room"
# A client does not say from where an engine fetches KV pages.
NAMES = (HOST, PORT, ROOM, "bootstrap_pair_key", "disagg_prefill_dp_rank")
ROOM_BITS = 62  # rooms of a batch are counted on from the first, and all are signed numbers of 64 bits
# SGLang computes the common prompt of several answers in a request of its own, which no prefill pod knows; numbers of the prompt are in the
# prefill pod's answer, which nobody reads.
SEVERAL, OF_THE_PROMPT = ("n", "best_of"), ("echo",)


def refused(document: Mapping[str, Any]) -> str:
    """Say which field of a request two engines cannot serve together; "" where they can."""
    for name in SEVERAL:
        if document.get(name) not in (None, 1):
            return f"`{name}` must be 1: another pod computes the prompts"
    for name in OF_THE_PROMPT:
        if document.get(name):
            return f"`{name}` must be false: another pod computes the prompts"
    return ""


def own_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's request without the fields that only the sidecar sets."""
    return {name: value for name, value in document.items() if name not in NAMES}


def bodies(document: Mapping[str, Any], address: str) -> tuple[bytes, bytes]:
    """Return the bodies of the prefill and the decode leg, which meet in a new room of the prefill pod at `address`."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    meeting = {HOST: host, PORT: KV_TRANSFER_PORT, ROOM: secrets.randbits(ROOM_BITS)}
    decode = own_fields(document) | meeting
    prefill = {name: value for name, value in decode.items() if name != "stream_options"} | {"stream": False}
    return json.dumps(prefill).encode(), json.dumps(decode).encode()
