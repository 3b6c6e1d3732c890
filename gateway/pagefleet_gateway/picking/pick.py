"""What picking gets and gives: a client's request, the same with its service, and the pods that are chosen for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagefleet_gateway.bodies.edits import Edit
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.envoy.stream_timeout import NO_STREAM_TIMEOUT, StreamTimeout
from pagefleet_gateway.picking.prompts.request_cost import RequestCost


@dataclass(frozen=True)
class Request:
    """A client's request. Header names are lower case."""

    id: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    subset: frozenset[str] | None = None  # the pod addresses that it may go to; None: any


@dataclass(frozen=True)
class Pick:
    """The decision to send a request on: `choices` are the pods in the order in which Envoy tries them."""

    revision: str
    choices: tuple[Pod, ...]
    timeout_seconds: float | None  # None: the gateway's default
    retries: int
    fallback: str = ""  # namespace/name of the service that answers instead of the requested one, "" for none
    mirror: Pod | None = None  # gets a copy, whose answer is thrown away
    stream_timeout: StreamTimeout = NO_STREAM_TIMEOUT
    api_key: str = ""  # the name of the client's API key; the key itself does not reach the engine
    engine_key: str = field(default="", repr=False)  # what the engine gets in its place, "" for none
    include_usage: bool = False  # the end of its streamed answer has the number of its tokens
    forced: bool = False  # `rollout.route.header` has sent it to the canary
    peak_output_tokens: int = 0  # the cap of its new tokens; 0: none
    edits: tuple[Edit, ...] = ()  # changes of its body
    prefill: tuple[Pod, ...] = ()  # of each revision that the request or its copy may go to, the best prefill pod first

    def prefill_of(self, pod: Pod) -> Pod | None:
        """Return the prefill pod that a decode pod asks; None where it computes the prompt itself."""
        return next((one for one in self.prefill if one.revision == pod.revision), None)


@dataclass(frozen=True)
class Admitted:
    """A request whose service is known and whose limits allow it; `arrived` is the picker's steady time."""

    request: Request
    service: Service
    cost: RequestCost
    arrived: float
    api_key: str = ""  # the name of the client's API key
