"""Envoy's spans: their collector (OTLP over HTTP) and the requests that have any. Without an endpoint there are none.

Pure: reads OpenTelemetry's own variables and builds dicts. The sampling rules are those of its SDKs, so the gateway and the
engine decide alike. Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and .../configuration/sdk-environment-variables/
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from pagefleet_contract.addresses import authority
from pagefleet_contract.headers import REQUEST_ID_HEADER
from pagefleet_contract.names import GATEWAY
from pagefleet_gateway.envoy.clusters import TYPE, extension
from pagefleet_gateway.envoy.timeouts import COLLECTOR_CONNECT_SECONDS, COLLECTOR_EXPORT_SECONDS, envoy_duration

ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HEADERS, SAMPLER, SHARE = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
SAMPLERS = ("parentbased_always_on", "parentbased_traceidratio", "always_on", "traceidratio")
CLUSTER = "collector"
CERTIFICATE, CERTIFICATES = "OTEL_EXPORTER_OTLP_CERTIFICATE", "/etc/ssl/certs/ca-certificates.crt"
MILLIONTHS = 1_000_000


class TracingError(ValueError):
    """A variable has a value that is not allowed. The message names the variable and the allowed values."""


@dataclass(frozen=True)
class Collector:
    """The receiver of spans. `share` (0 to 1): the part of the traces begun here that is recorded. With `parents`, the choice
    of a caller that sends a trace goes before it."""

    host: str
    port: int
    path: str
    secure: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    service: str = GATEWAY
    share: float = 1.0
    parents: bool = True
    ca_file: str = CERTIFICATES  # the file with the CA certificates of an https endpoint


def collector_from(environment: Mapping[str, str]) -> Collector | None:
    """Read the collector from the environment; None where no endpoint is named. Raises TracingError."""
    traces, base = environment.get(TRACES_ENDPOINT, ""), environment.get(ENDPOINT, "")
    if not traces and not base:
        return None
    name = TRACES_ENDPOINT if traces else ENDPOINT
    try:
        parts = urlsplit(traces or base)
        port = parts.port
    except ValueError as error:
        raise TracingError(f"{name}={traces or base!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TracingError(f"{name}={traces or base!r}: must be http://host[:port] or https://host[:port]")
    sampler = environment.get(SAMPLER) or SAMPLERS[0]
    if sampler not in SAMPLERS:
        raise TracingError(f"{SAMPLER}={sampler!r}: must be one of {', '.join(SAMPLERS)}")
    path = parts.path or "/"
    return Collector(
        host=parts.hostname,
        port=port or (443 if parts.scheme == "https" else 80),
        path=path if traces else f"{path.rstrip('/')}/v1/traces",
        secure=parts.scheme == "https",
        headers=_headers(environment.get(HEADERS, "")),
        service=environment.get("OTEL_SERVICE_NAME") or GATEWAY,
        share=_share(environment) if sampler.endswith("ratio") else 1.0,
        parents=sampler.startswith("parentbased"),
        ca_file=environment.get(CERTIFICATE) or CERTIFICATES,
    )


def _share(environment: Mapping[str, str]) -> float:
    text = environment.get(SHARE) or "1"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise TracingError(f"{SHARE}={text!r}: must be a number from 0 to 1")
    return share


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    """Read key=value pairs with commas between, percent-encoded."""
    pairs = [entry.partition("=") for entry in text.split(",") if entry.strip()]
    if any(not key.strip() or not equals for key, equals, _ in pairs):
        raise TracingError(f"{HEADERS}: must be key=value pairs with commas between")
    return tuple((unquote(key.strip()).lower(), unquote(value.strip())) for key, _, value in pairs)


def tracing_config(collector: Collector) -> dict[str, object]:
    """Build the connection manager's `tracing`: a span for each request, and one for each attempt at a pod."""
    headers = [{"header": {"key": key, "value": value.replace("%", "%%")}} for key, value in collector.headers]
    return {
        # Envoy's own sampling passes everything: the sampler below chooses.
        "client_sampling": {"value": 100},
        "random_sampling": {"value": 100},
        "overall_sampling": {"value": 100},
        "spawn_upstream_span": True,
        "custom_tags": [
            {"tag": f"http.request.header.{REQUEST_ID_HEADER}", "request_header": {"name": REQUEST_ID_HEADER}},
            _pod_tag("pagefleet.namespace", "namespace"),
            _pod_tag("pagefleet.service", "service"),
            _pod_tag("pagefleet.revision", "revision"),
        ],
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": TYPE + "config.trace.v3.OpenTelemetryConfig",
                "service_name": collector.service,
                "http_service": {
                    "http_uri": {
                        "uri": f"http://{authority(collector.host, collector.port)}{collector.path}",
                        "cluster": CLUSTER,
                        "timeout": envoy_duration(COLLECTOR_EXPORT_SECONDS),
                    },
                    "request_headers_to_add": headers,
                },
                "sampler": _sampler(collector),
            },
        },
    }


def _pod_tag(tag: str, name: str) -> dict[str, object]:
    """Build a tag from the endpoint's metadata (endpoints.py)."""
    key = {"key": "pagefleet", "path": [{"key": name}]}
    return {"tag": tag, "metadata": {"kind": {"host": {}}, "metadata_key": key}}


def _sampler(collector: Collector) -> dict[str, object]:
    folder = "extensions.tracers.opentelemetry.samplers.v3."
    share = {"numerator": round(collector.share * MILLIONTHS), "denominator": "MILLION"}
    root = extension(
        "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based",
        folder + "TraceIdRatioBasedSamplerConfig",
        sampling_percentage=share,
    )
    if not collector.parents:
        return root
    return extension(
        "envoy.tracers.opentelemetry.samplers.parent_based", folder + "ParentBasedSamplerConfig", wrapped_sampler=root
    )


def collector_cluster(collector: Collector) -> dict[str, object]:
    """Build the collector's cluster. Envoy resolves its name again as DNS answers expire, and tries the addresses of both families:
    a name may have one of IPv6 though this pod has none."""
    address = {"socket_address": {"address": collector.host, "port_value": collector.port}}
    cluster: dict[str, object] = {
        "name": CLUSTER,
        "type": "LOGICAL_DNS",
        "dns_lookup_family": "ALL",
        "connect_timeout": envoy_duration(COLLECTOR_CONNECT_SECONDS),
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
    if collector.secure:
        trusted = {"trusted_ca": {"filename": collector.ca_file}}
        numbered = _is_address(collector.host)
        names = [{"san_type": "IP_ADDRESS" if numbered else "DNS", "matcher": {"exact": collector.host}}]
        cluster["transport_socket"] = extension(
            "envoy.transport_sockets.tls",
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            **({} if numbered else {"sni": collector.host}),
            common_tls_context={"validation_context": {**trusted, "match_typed_subject_alt_names": names}},
        )
    return cluster


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ip_address(host)
        return True
    return False
