"""The messages of Envoy's ext_proc, as the endpoint-picker protocol uses them: reading requests, building answers.

Pure: no gRPC, no decision. Source: Gateway API Inference Extension, proposal 004 (endpoint-picker protocol).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from envoy.type.v3 import http_status_pb2
from google.protobuf import duration_pb2, struct_pb2

from pagefleet_contract.disaggregation import prefill_header
from pagefleet_contract.headers import (
    CLIENT_HEADER,
    ERROR_HEADER,
    FALLBACK_HEADER,
    PEAK_HEADER,
    PREFILL_HEADER,
    PREFILLED_HEADER,
    REVISION_HEADER,
)
from pagefleet_gateway.envoy.clusters import DESTINATION
from pagefleet_gateway.fronts.key_headers import client_key_headers, key_headers
from pagefleet_gateway.picking.pick import Pick
from pagefleet_gateway.picking.routing import Refusal

METADATA = "envoy.lb"  # namespace of the picked and of the served endpoint
SERVED = "x-gateway-destination-endpoint-served"
SUBSET_METADATA = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"
MARGIN_SECONDS = 1.0  # for the answer to a request that has waited as long as it may
MODEL_REWRITE = "x-gateway-model-name-rewrite"  # llm-d's: the model that a request is for, in place of its body's
PIECE_BYTES = 60_000  # below Envoy's and gRPC's usual limits on a message


def headers_of(message: proto.HttpHeaders) -> dict[str, str]:
    """Return the header values by lower-case name; of a repeated header the last."""
    return {
        header.key.lower(): header.raw_value.decode("latin-1") or header.value for header in message.headers.headers
    }


def tokens_of(headers: base_pb2.HeaderMap, name: str) -> int | None:
    """Return the tokens that an engine reports in a header or a trailer; None without it."""
    text = _value(headers, name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def error_of(headers: base_pb2.HeaderMap) -> str:
    """Return the code of the error that an engine reports in its headers or trailers; "" without one."""
    return _value(headers, ERROR_HEADER)


def prefilled_of(headers: base_pb2.HeaderMap) -> str:
    """Return what a decode pod says of its answer's prefill leg; "" where it had none."""
    return _value(headers, PREFILLED_HEADER)


def _value(headers: base_pb2.HeaderMap, name: str) -> str:
    found = next((header for header in headers.headers if header.key.lower() == name), None)
    return "" if found is None else found.raw_value.decode("latin-1") or found.value


def subset_of(request: proto.ProcessingRequest) -> frozenset[str] | None:
    """Return the endpoints that the pick must be one of; None when the gateway gives no such hint.

    The hint is a list of `ip:port`, or one text of them with commas. An empty hint allows nothing.
    """
    fields = _metadata(request, SUBSET_METADATA)
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    values = [item.string_value for item in value.list_value.values] or [value.string_value]
    return frozenset(endpoint_of(part) for text in values for part in text.split(",") if part.strip())


def served_of(request: proto.ProcessingRequest) -> str:
    """Return the `ip:port` that answered, "" when the gateway does not report it."""
    fields = _metadata(request, METADATA)
    return endpoint_of(fields[SERVED].string_value) if SERVED in fields else ""


def endpoint_of(text: str) -> str:
    """Return an `ip:port` as Kubernetes writes the address: a gateway may write an IPv6 one in full or in capitals."""
    host, _, port = text.strip().rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return text.strip()
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def pick_response(pick: Pick) -> tuple[proto.CommonResponse, struct_pb2.Struct]:
    """Return the picked endpoint and those of its retries, in order, as a header and as metadata: the two must be equal."""
    value = ",".join(dict.fromkeys(pod.address for pod in pick.choices))
    option = _header(DESTINATION, value)
    metadata = struct_pb2.Struct()
    metadata.get_or_create_struct(METADATA)[DESTINATION] = value
    options = [option, *(_header(key, value) for key, value in key_headers(pick))]
    # Another gateway passes on what its client says of itself.
    forged = [] if pick.api_key else [CLIENT_HEADER]
    if pick.prefill:
        options.append(_header(PREFILL_HEADER, prefill_header((pod.revision, pod.address) for pod in pick.prefill)))
    else:
        forged.append(PREFILL_HEADER)
    mutation = proto.HeaderMutation(set_headers=options, remove_headers=[*client_key_headers(pick), *forged])
    common = proto.CommonResponse(header_mutation=mutation, clear_route_cache=True)
    return common, metadata


def response_headers(pick: Pick, served: str) -> proto.CommonResponse:
    """Return the headers for the client: the revision that answered, and the service when a fallback did."""
    revision = next((pod.revision for pod in pick.choices if pod.address == served), pick.revision)
    options = [_header(REVISION_HEADER, revision)]
    if pick.fallback:
        options.append(_header(FALLBACK_HEADER, pick.fallback))
    if pick.edits:
        options.append(_header(PEAK_HEADER, str(pick.peak_output_tokens)))
    return proto.CommonResponse(header_mutation=proto.HeaderMutation(set_headers=options))


def immediate_response(refusal: Refusal) -> proto.ProcessingResponse:
    """Return the answer that goes to the client at once."""
    headers = {"content-type": "application/json"}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    options = [_header(key, value) for key, value in headers.items()]
    return proto.ProcessingResponse(
        immediate_response=proto.ImmediateResponse(
            status=http_status_pb2.HttpStatus(code=refusal.status),
            headers=proto.HeaderMutation(set_headers=options),
            body=refusal.body(),
            details=refusal.code,
        )
    )


def more_time(seconds: float) -> proto.ProcessingResponse:
    """Return the message that asks the gateway to wait so much longer for the answer. One that allows no such wait ignores it."""
    timeout = duration_pb2.Duration()
    timeout.FromMilliseconds(max(1, round((seconds + MARGIN_SECONDS) * 1000)))
    return proto.ProcessingResponse(override_message_timeout=timeout)


def with_body(common: proto.CommonResponse, body: bytes) -> proto.CommonResponse:
    """Return the answer to a buffered body with another body in its place."""
    length = _header("content-length", str(len(body)))
    mutation = proto.HeaderMutation(
        set_headers=[*common.header_mutation.set_headers, length], remove_headers=common.header_mutation.remove_headers
    )
    return proto.CommonResponse(
        header_mutation=mutation,
        clear_route_cache=common.clear_route_cache,
        body_mutation=proto.BodyMutation(body=body),
    )


def body_pieces(body: bytes, ends: bool) -> Iterator[proto.CommonResponse]:
    """Return a body as it came. In full-duplex mode the gateway passes on the body that we send, not the one it got."""
    pieces = [body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES)] or [b""]
    for index, piece in enumerate(pieces):
        last = ends and index == len(pieces) - 1
        returned = proto.StreamedBodyResponse(body=piece, end_of_stream=last)
        yield proto.CommonResponse(body_mutation=proto.BodyMutation(streamed_response=returned))


def _header(key: str, value: str) -> base_pb2.HeaderValueOption:
    return base_pb2.HeaderValueOption(
        header=base_pb2.HeaderValue(key=key, raw_value=value.encode()),
        append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _metadata(request: proto.ProcessingRequest, namespace: str) -> Mapping[str, struct_pb2.Value]:
    structs = request.metadata_context.filter_metadata
    return structs[namespace].fields if namespace in structs else {}
