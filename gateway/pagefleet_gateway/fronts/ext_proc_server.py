"""The gRPC server of the endpoint picker: ext_proc and health on one port, with TLS unless it is switched off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service

from pagefleet_contract.addresses import authority
from pagefleet_gateway.fronts.ext_proc import EndpointPicker
from pagefleet_gateway.fronts.ext_proc_health import Health
from pagefleet_gateway.fronts.ext_proc_limits import MIB
from pagefleet_gateway.fronts.ext_proc_tls import Certificates

SPARE_STREAMS = 128  # beyond the exchanges: health checks, and exchanges that are refused by name


@dataclass(frozen=True)
class Listen:
    """Where and how the picker listens. `tls` off: plaintext. `authorities`: a client's certificate must be signed by one."""

    address: str
    port: int
    tls: bool = True
    folder: Path | None = None  # tls.crt and tls.key; without them the picker signs its own certificate
    authorities: Path | None = None
    hosts: tuple[str, ...] = ("localhost",)  # the names of a certificate of its own


async def serve(
    picker: EndpointPicker, listen: Listen, not_ready_reason: Callable[[], str] = lambda: ""
) -> tuple[grpc.aio.Server, int]:
    """Listen. Return the server and its port; `await server.stop(seconds)` ends it. Raises PickerTLSError."""
    limits = picker.limits
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),
            # A body above the limit gets a 413 and not gRPC's own error. Twice the limit is where patience ends.
            ("grpc.max_receive_message_length", 2 * limits.request_bytes + MIB),
        ],
        maximum_concurrent_rpcs=limits.exchanges + SPARE_STREAMS,
    )
    service.add_ExternalProcessorServicer_to_server(picker, server)
    server.add_generic_rpc_handlers((Health(not_ready_reason).handler(),))
    place = authority(listen.address, listen.port)
    if listen.tls:
        certificates = Certificates(listen.folder, listen.authorities, listen.hosts)
        port = server.add_secure_port(place, certificates.credentials())
    else:
        port = server.add_insecure_port(place)
    await server.start()
    return server, port
