"""HTTP headers that more than one piece reads or writes. Header names are lower-case."""

from __future__ import annotations

from collections.abc import Mapping

# The gateway removes what clients send under these prefixes: a client's request can never carry one to an engine.
RESERVED_PREFIXES = ("x-gateway-", "x-pagefleet-", "x-envoy-")

REVISION_HEADER = "x-pagefleet-revision"  # of an answer: the revision that answered
OUTPUT_TOKENS_HEADER = (
    "x-pagefleet-output-tokens"  # of a whole answer a header, of a stream a trailer: its output tokens
)
PROMPT_TOKENS_HEADER = "x-pagefleet-prompt-tokens"  # of an answer: the tokens of its request's prompts
ERROR_HEADER = "x-pagefleet-error"  # of an answer with 5xx, or 429 with ENGINE_FULL, a header, of a stream that an error ended a trailer: its code
ATTEMPT_HEADER = "x-envoy-attempt-count"  # of a request at an engine: 1 is the first attempt, 2 the first retry
CLIENT_HEADER = "x-pagefleet-client"  # of a request at an engine: the name of the gateway's API key that its client has
ACTS_FOR_HEADER = (
    "pagefleet-acts-for"  # of a request to the gateway whose key acts for clients: the name of the client's API key
)
PRIORITY_HEADER, BACKGROUND = "priority", "u=7"  # RFC 9218, section 4.1: the lowest urgency, for background work
ENGINE_FULL = "queue_full"  # the error's code where the engine's queue has no room: another pod may have some
ENGINE_DIED = "engine_died"  # the error's code where the engine process ended before the answer did
FALLBACK_HEADER = "x-pagefleet-fallback"  # of an answer: namespace/name of the service that answered in another's place
PEAK_HEADER = "x-pagefleet-peak-output-tokens"  # of an answer: the cap that a peak set to its new tokens
PREFILL_HEADER = "x-pagefleet-prefill"  # of a request at a decode pod: the prefill pods that may compute its prompt
PREFILLED_HEADER = (
    "x-pagefleet-prefilled"  # of an answer: what became of its prefill leg (pagefleet_contract.disaggregation)
)
REQUEST_ID_HEADER = "x-request-id"
TRACEPARENT_HEADER = "traceparent"  # W3C trace context


def is_background(headers: Mapping[str, str]) -> bool:
    """Whether a request says that it may wait for idle capacity: `priority: u=7`, other parameters beside it allowed."""
    return any(part.strip() == BACKGROUND for part in headers.get(PRIORITY_HEADER, "").split(","))
