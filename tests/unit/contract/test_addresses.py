"""Protects where servers listen, and how addresses of pods are written: clusters whose pods have IPv6 addresses are served."""

from __future__ import annotations

import socket

import pytest

from pagefleet_contract.addresses import EVERY, EVERY_IPV4, authority, every_address, listening_socket


@pytest.mark.parametrize(
    ("host", "written"),
    [("10.0.0.5", "10.0.0.5:8000"), ("fd00::5", "[fd00::5]:8000"), ("engine.svc", "engine.svc:8000")],
)
def test_an_ipv6_address_stands_in_brackets(host: str, written: str) -> None:
    assert authority(host, 8000) == written


@pytest.mark.parametrize("address", [EVERY, EVERY_IPV4])
def test_every_address_takes_the_clients_of_its_families(address: str) -> None:
    with listening_socket(address, 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1") if address == EVERY else ("127.0.0.1",):
            with socket.create_connection((host, port), timeout=5):
                accepted, _ = listener.accept()
                accepted.close()


def test_a_pod_with_both_families_listens_on_both() -> None:
    assert every_address() == EVERY
