"""Kubernetes' server of custom resources alone, on etcd: without kube-apiserver, so without namespaces, roles and admission.

It asks a kube-apiserver only who a token is of and what a user may do. Here a client certificate of the group system:masters says
both, so that its kubeconfig names the server itself and is never used.
"""

from __future__ import annotations

from pagefleet_local.assets.crdserver import CrdServer
from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import Daemon
from pagefleet_local.controlplane import apiserver

# What needs the core API: namespaces, policies, webhooks.
ADMISSION = (
    "NamespaceLifecycle",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
)
# Its list of Services (for webhooks that convert objects) is never complete: there are none.
READY = "/readyz?exclude=informer-sync"


def start(layout: Layout, server: CrdServer, authority: Authority, emulated: str = "") -> Daemon:
    """Start it and wait until it is ready. Its administrator's kubeconfig is the layout's. It behaves as version `emulated` of
    Kubernetes (1.33), where one is given."""
    serving = authority.issue("crd-server", "crd-server", hosts=["localhost", "127.0.0.1"])
    etcd_client = authority.issue("crd-server-etcd-client", "crd-server-etcd-client")
    admin = authority.issue("admin", "pagefleet-admin", ["system:masters"])
    ca = authority.pair.certificate
    config = authority.kubeconfig(layout.kubeconfig, f"https://127.0.0.1:{layout.api_port}", admin)
    daemon = Daemon(layout, "apiextensions-apiserver")
    daemon.start(
        [
            server.program,
            f"--etcd-servers=https://127.0.0.1:{layout.etcd_port}",
            f"--etcd-cafile={ca}",
            f"--etcd-certfile={etcd_client.certificate}",
            f"--etcd-keyfile={etcd_client.key}",
            "--bind-address=127.0.0.1",
            f"--secure-port={layout.api_port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--cert-dir={layout.pki}",  # it makes the folder, also where it writes nothing
            f"--client-ca-file={ca}",
            f"--requestheader-client-ca-file={ca}",
            # No certificate that this CA gives may name other users.
            "--requestheader-allowed-names=nobody",
            "--authentication-skip-lookup",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--enable-priority-and-fairness=false",
            f"--disable-admission-plugins={','.join(ADMISSION)}",
            *([f"--emulated-version={emulated}", f"--min-compatibility-version={emulated}"] if emulated else []),
        ]
    )
    daemon.wait(lambda: apiserver.ready(layout, authority, admin, READY), timeout=60)
    return daemon
