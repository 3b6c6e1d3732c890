"""Addresses of pods, of IPv4 and of IPv6: where a server listens, and how a client writes the address of another pod."""

from __future__ import annotations

import socket

EVERY_IPV4, EVERY = "0.0.0.0", "::"  # EVERY takes IPv4 too where `listening_socket` or an engine listens on it


def every_address() -> str:
    """Return the address that means every address of the pod: of both families where the pod has both."""
    try:
        with socket.create_server((EVERY, 0), family=socket.AF_INET6):
            return EVERY
    except OSError:
        return EVERY_IPV4


def listening_socket(address: str, port: int, backlog: int = 128) -> socket.socket:
    """Listen on an address. `::` takes IPv4 too. Raises OSError."""
    if ":" not in address:
        return socket.create_server((address, port), backlog=backlog)
    return socket.create_server(
        (address, port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=address == EVERY
    )


def authority(host: str, port: int) -> str:
    """Return host:port as a URL has it: an IPv6 address stands in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
