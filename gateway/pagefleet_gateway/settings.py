"""The gateway's settings, read once from the environment. Decides nothing else. The only file that it reads is the CPU limit."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pagefleet_contract.addresses import every_address
from pagefleet_contract.names import GATEWAY, GATEWAY_INTERNAL_PORT, GATEWAY_PORT
from pagefleet_contract.quantity import seconds
from pagefleet_contract.traffic import DEFAULT_TIMEOUT
from pagefleet_gateway.envoy.processors import default_workers
from pagefleet_gateway.envoy.tracing import Collector, TracingError, collector_from

# SIGTERM: until the pod has left every list of endpoints; for open requests, as long as the longest answer by default; for
# Envoy to stop. A pod's terminationGracePeriodSeconds is their sum and SPARE_SECONDS (manifests/gateway, the chart).
SETTLE_SECONDS, DRAIN_SECONDS, STOP_SECONDS, SPARE_SECONDS = 3, int(seconds(DEFAULT_TIMEOUT)), 5, 7
MAX_DRAIN_SECONDS = 24 * 3600  # the longest `spec.traffic.timeout`
MIB = 1024 * 1024


class SettingError(ValueError):
    """An environment variable has a value that is not allowed. The message names the variable and the allowed values."""


@dataclass(frozen=True)
class Settings:
    """The values that can differ between two gateway pods. Ports may be 0: the system then chooses one."""

    port: int = GATEWAY_PORT  # Envoy's listener
    internal_port: int = GATEWAY_INTERNAL_PORT  # /healthz, /readyz, /metrics, /windows, /held
    picker_port: int | None = None  # ext_proc over gRPC for other gateways; None: not served
    picker_tls: bool = True  # off: the picker's port speaks plaintext
    picker_tls_folder: Path | None = None  # tls.crt and tls.key; without them the picker signs its own certificate
    picker_client_ca: Path | None = None  # the authorities of gateways' certificates; None: a client needs none
    picker_exchanges: int = 4096  # requests of other gateways that are open at the same time
    workers: int = field(default_factory=default_workers)  # Envoy's worker threads
    address: str = field(default_factory=every_address)
    pod_name: str = GATEWAY
    pod_namespace: str = ""  # this pod's; the other gateway pods are found there. "": quotas are this pod's alone
    kubeconfig: Path | None = None  # None: the pod's service account
    namespace: str = ""  # the namespace whose services and pods are watched; "": all
    pools: str = ""  # the Service that InferencePools name when this gateway is their picker; "": pools are ignored
    max_request_bytes: int = 4 * 1024 * 1024
    max_connections: int = 20_000  # of clients
    max_heap_bytes: int = 1024 * MIB  # Envoy's: it refuses requests near it
    drain_seconds: float = float(DRAIN_SECONDS)  # how long SIGTERM waits for requests in flight
    settle_seconds: float = float(SETTLE_SECONDS)  # how long SIGTERM keeps accepting while the Service forgets this pod
    tls_folder: Path | None = None  # tls.crt and tls.key; None: no listener with TLS
    tls_port: int = 8443
    plaintext: bool = True  # whether there is a listener on `port` at all
    api_keys_file: Path | None = None  # None: clients need no key
    budgets_file: Path | None = None  # where the tokens of the month are kept; None: in memory only
    batches: tuple[str, int] | None = None  # host and port of the batches server; None: there is none
    spans: Collector | None = None  # the collector of spans; None: Envoy makes none
    temporary: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Read `PAGEFLEET_GATEWAY_*`, `PAGEFLEET_KUBECONFIG` (or `KUBECONFIG`), `POD_NAME` and `POD_NAMESPACE`.

    `OTEL_*` are tracing.py's. Raises SettingError for a value that is out of range.
    """
    try:
        spans = collector_from(environment)
    except TracingError as error:
        raise SettingError(str(error)) from error
    kubeconfig = environment.get("PAGEFLEET_KUBECONFIG") or environment.get("KUBECONFIG")
    folder, keys = environment.get("PAGEFLEET_GATEWAY_TLS_FOLDER"), environment.get("PAGEFLEET_GATEWAY_API_KEYS_FILE")
    plaintext = environment.get("PAGEFLEET_GATEWAY_PLAINTEXT", "on")
    if plaintext not in ("on", "off") or (plaintext == "off" and not folder):
        raise SettingError(
            f"PAGEFLEET_GATEWAY_PLAINTEXT={plaintext!r}: must be on or off, and off only with PAGEFLEET_GATEWAY_TLS_FOLDER"
        )
    return Settings(
        port=_integer(environment, "PAGEFLEET_GATEWAY_PORT", GATEWAY_PORT, 0, 65535),
        internal_port=_integer(environment, "PAGEFLEET_GATEWAY_INTERNAL_PORT", GATEWAY_INTERNAL_PORT, 0, 65535),
        picker_port=_integer(environment, "PAGEFLEET_GATEWAY_PICKER_PORT", 0, 0, 65535)
        if environment.get("PAGEFLEET_GATEWAY_PICKER_PORT")
        else None,
        picker_tls=_switch(environment, "PAGEFLEET_GATEWAY_PICKER_TLS"),
        picker_tls_folder=_path(environment, "PAGEFLEET_GATEWAY_PICKER_TLS_FOLDER"),
        picker_client_ca=_client_ca(environment),
        picker_exchanges=_integer(environment, "PAGEFLEET_GATEWAY_PICKER_EXCHANGES", 4096, 1, 65536),
        workers=_integer(environment, "PAGEFLEET_GATEWAY_WORKERS", default_workers(), 1, 64),
        address=environment.get("PAGEFLEET_GATEWAY_ADDRESS") or every_address(),
        pod_name=environment.get("POD_NAME", GATEWAY),
        pod_namespace=environment.get("POD_NAMESPACE", ""),
        namespace=environment.get("PAGEFLEET_GATEWAY_NAMESPACE", ""),
        pools=_pools(environment),
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        max_request_bytes=_integer(
            environment, "PAGEFLEET_GATEWAY_MAX_REQUEST_BYTES", 4 * 1024 * 1024, 1024, 256 * 1024 * 1024
        ),
        drain_seconds=float(
            _integer(environment, "PAGEFLEET_GATEWAY_DRAIN_SECONDS", DRAIN_SECONDS, 0, MAX_DRAIN_SECONDS)
        ),
        max_connections=_integer(environment, "PAGEFLEET_GATEWAY_MAX_CONNECTIONS", 20_000, 1, 1_000_000),
        max_heap_bytes=_integer(environment, "PAGEFLEET_GATEWAY_MAX_HEAP_MIB", 1024, 64, 65536) * MIB,
        tls_folder=Path(folder) if folder else None,
        tls_port=_integer(environment, "PAGEFLEET_GATEWAY_TLS_PORT", 8443, 0, 65535),
        plaintext=plaintext == "on",
        api_keys_file=Path(keys) if keys else None,
        budgets_file=_path(environment, "PAGEFLEET_GATEWAY_BUDGETS_FILE"),
        batches=_host_port(environment, "PAGEFLEET_GATEWAY_BATCHES"),
        spans=spans,
        settle_seconds=float(_integer(environment, "PAGEFLEET_GATEWAY_SETTLE_SECONDS", SETTLE_SECONDS, 0, 600)),
    )


def _client_ca(environment: Mapping[str, str]) -> Path | None:
    file = _path(environment, "PAGEFLEET_GATEWAY_PICKER_CLIENT_CA_FILE")
    if file is not None and not _switch(environment, "PAGEFLEET_GATEWAY_PICKER_TLS"):
        raise SettingError(
            f"PAGEFLEET_GATEWAY_PICKER_CLIENT_CA_FILE={str(file)!r}: needs PAGEFLEET_GATEWAY_PICKER_TLS=on, because only TLS shows a client's certificate"
        )
    return file


def _host_port(environment: Mapping[str, str], name: str) -> tuple[str, int] | None:
    text = environment.get(name, "")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingError(f"{name}={text!r}: must be <host>:<port>, with a port from 1 to 65535")
    return host, int(port)


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name)
    return Path(text) if text else None


def _switch(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name) or "on"
    if text not in ("on", "off"):
        raise SettingError(f"{name}={text!r}: must be on or off")
    return text == "on"


def _pools(environment: Mapping[str, str]) -> str:
    pools = environment.get("PAGEFLEET_GATEWAY_POOLS", "")
    needed = ("PAGEFLEET_GATEWAY_NAMESPACE", "PAGEFLEET_GATEWAY_PICKER_PORT")
    if pools and not all(environment.get(name) for name in needed):
        raise SettingError(
            f"PAGEFLEET_GATEWAY_POOLS={pools!r}: needs {' and '.join(needed)} too, because a pool's picker is in the pool's own namespace"
        )
    return pools


def _integer(environment: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError as error:
        raise SettingError(f"{name}={text!r}: must be a whole number from {low} to {high}") from error
    if not low <= value <= high:
        raise SettingError(f"{name}={value}: must be from {low} to {high}")
    return value
