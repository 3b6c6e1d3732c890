"""The two legs of a request to vLLM as bodies: what the prefill pod is asked, and what the decode engine is asked. Pure.

The names are vLLM's. The prefill leg asks for one token, whose KV pages stay for the decode leg. Its answer holds the parameters
by which the decode engine fetches these pages, and the sidecar passes them on as they are. Source of the bodies: the proxy that vLLM tests
its NixlConnector with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagefleet_contract.disaggregation import SPLIT_PATHS
from pagefleet_sidecar.documents import document_of

PARAMS = "kv_transfer_params"
REMOTE_DECODE: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
# What one token needs no more, or would be refused beside it.
DROPPED = ("stream_options", "min_tokens", "min_completion_tokens")
ALONE = ("prompt_logprobs", "echo", "use_beam_search")  # with one of them a decode pod computes the prompt itself


def is_split(path: str, document: Mapping[str, Any]) -> bool:
    """Whether a request's prompt may be computed by another pod: one prompt with one answer, and no numbers of the prompt itself."""
    if path not in SPLIT_PATHS or any(document.get(name) for name in ALONE):
        return False
    if document.get("n") not in (None, 1) or document.get("best_of") not in (None, 1):
        return False
    if path == SPLIT_PATHS[0]:
        return isinstance(document.get("messages"), list)
    prompt = document.get("prompt")
    return isinstance(prompt, str) or (
        isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)
    )


def prefill_body(document: Mapping[str, Any]) -> bytes:
    """Return the body of the prefill leg."""
    asked = {name: value for name, value in document.items() if name not in DROPPED}
    asked |= {"stream": False, "max_tokens": 1, PARAMS: dict(REMOTE_DECODE)}
    if "max_completion_tokens" in asked:
        asked["max_completion_tokens"] = 1
    return json.dumps(asked).encode()


def decode_body(document: Mapping[str, Any], params: Mapping[str, Any] | None) -> bytes:
    """Return the body of the decode leg; with `params` None the engine computes the prompt itself."""
    asked = {name: value for name, value in document.items() if name != PARAMS}
    return json.dumps(asked if params is None else {**asked, PARAMS: params}).encode()


def params_of(answer: bytes) -> Mapping[str, Any] | None:
    """Return the parameters of the transfer in the answer to the prefill leg; None without them."""
    document = document_of(answer)
    params = None if document is None else document.get(PARAMS)
    return params if isinstance(params, dict) and params else None
