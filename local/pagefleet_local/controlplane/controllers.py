"""kube-controller-manager and kube-scheduler, each with a client certificate and a serving port of its own."""

from __future__ import annotations

from pagefleet_local.assets.kubernetes import Binaries
from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import Daemon
from pagefleet_local.controlplane.etcd import listens

# From this minor version on the insecure port and the flag that turns it off are gone.
NO_INSECURE_PORT = 24


def start(layout: Layout, binaries: Binaries, authority: Authority) -> list[Daemon]:
    ca, accounts = authority.pair, authority.service_account_keys()
    manager = [
        f"--root-ca-file={ca.certificate}",
        f"--service-account-private-key-file={accounts.key}",
        f"--cluster-signing-cert-file={ca.certificate}",
        f"--cluster-signing-key-file={ca.key}",
        "--use-service-account-credentials=true",
        # The defaults are for clusters of thousands; a laptop's fleet should notice a dead pod in seconds.
        "--node-monitor-period=2s",
        "--node-monitor-grace-period=20s",
    ]
    return [
        _component(layout, binaries, authority, "kube-controller-manager", layout.first_component_port, manager),
        _component(layout, binaries, authority, "kube-scheduler", layout.first_component_port + 1, []),
    ]


def _component(
    layout: Layout, binaries: Binaries, authority: Authority, name: str, port: int, flags: list[str]
) -> Daemon:
    client = authority.issue(name, f"system:{name}", hosts=["127.0.0.1", "localhost"])
    server = f"https://127.0.0.1:{layout.api_port}"
    config = authority.kubeconfig(layout.state / f"{name}.kubeconfig", server, client)
    daemon = Daemon(layout, name)
    daemon.start(
        [
            binaries[name],
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            # Their own limits (20 and 50 a second) would be what a fleet of hundreds waits for.
            "--kube-api-qps=300",
            "--kube-api-burst=600",
            f"--tls-cert-file={client.certificate}",
            f"--tls-private-key-file={client.key}",
            *(["--port=0"] if binaries.minor < NO_INSECURE_PORT else []),
            *flags,
        ]
    )
    daemon.wait(lambda: listens(port), timeout=60)
    return daemon
