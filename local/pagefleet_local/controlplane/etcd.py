"""etcd with TLS to its one client, on ports of its own."""

from __future__ import annotations

import socket

from pagefleet_local.assets import debian
from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import Daemon


def start(layout: Layout, authority: Authority) -> Daemon:
    server = authority.issue("etcd", "etcd", hosts=["127.0.0.1", "localhost"])
    ca = authority.pair.certificate
    client, peer = f"https://127.0.0.1:{layout.etcd_port}", f"https://127.0.0.1:{layout.etcd_port + 1}"
    daemon = Daemon(layout, "etcd")
    daemon.start(
        [
            debian.tool("etcd"),
            "--name=pagefleet",
            f"--data-dir={layout.state / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=pagefleet={peer}",
            "--client-cert-auth=true",
            f"--trusted-ca-file={ca}",
            f"--cert-file={server.certificate}",
            f"--key-file={server.key}",
            "--peer-client-cert-auth=true",
            f"--peer-trusted-ca-file={ca}",
            f"--peer-cert-file={server.certificate}",
            f"--peer-key-file={server.key}",
            "--log-level=warn",
        ]
    )
    daemon.wait(lambda: listens(layout.etcd_port), timeout=30)
    return daemon


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0
