"""kube-apiserver: TLS to everyone, Node and RBAC authorisation, NodeRestriction, an audit log."""

from __future__ import annotations

import http.client
import ssl

import yaml

from pagefleet_local.assets.kubernetes import Binaries
from pagefleet_local.base.certificates import Authority, Pair
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import Daemon

# Who did what to which object, without bodies: enough to derive RBAC from, small enough to keep.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "users": ["system:kube-scheduler", "system:kube-controller-manager", "system:apiserver"]},
        {"level": "None", "userGroups": ["system:nodes"]},
        {"level": "Metadata"},
    ],
}


def start(layout: Layout, binaries: Binaries, authority: Authority) -> Daemon:
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    server = authority.issue(
        "apiserver", "kube-apiserver", hosts=[*names, "localhost", "127.0.0.1", layout.node_ip, layout.api_service_ip]
    )
    etcd_client = authority.issue("apiserver-etcd-client", "apiserver-etcd-client")
    kubelet_client = authority.issue("apiserver-kubelet-client", "apiserver-kubelet-client", ["system:masters"])
    accounts, ca = authority.service_account_keys(), authority.pair.certificate
    policy = layout.state / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(AUDIT_POLICY, sort_keys=False))
    daemon = Daemon(layout, "kube-apiserver")
    daemon.start(
        [
            binaries["kube-apiserver"],
            f"--etcd-servers=https://127.0.0.1:{layout.etcd_port}",
            f"--etcd-cafile={ca}",
            f"--etcd-certfile={etcd_client.certificate}",
            f"--etcd-keyfile={etcd_client.key}",
            f"--secure-port={layout.api_port}",
            "--bind-address=0.0.0.0",
            f"--advertise-address={layout.node_ip}",
            # Without a node the address above does not exist, and nobody reads the kubernetes Endpoints.
            f"--endpoint-reconciler-type={'lease' if layout.has_node else 'none'}",
            f"--tls-cert-file={server.certificate}",
            f"--tls-private-key-file={server.key}",
            f"--client-ca-file={ca}",
            "--anonymous-auth=false",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--service-cluster-ip-range={layout.service_cidr}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            f"--kubelet-certificate-authority={ca}",
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            # kubectl logs and exec would look the node's name up in DNS first.
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-log-path={layout.logs / 'audit.log'}",
            f"--audit-policy-file={policy}",
            "--audit-log-maxsize=100",
            "--audit-log-maxbackup=2",
        ]
    )
    admin = authority.issue("admin", "pagefleet-admin", ["system:masters"])
    authority.kubeconfig(layout.kubeconfig, f"https://127.0.0.1:{layout.api_port}", admin)
    daemon.wait(lambda: ready(layout, authority, admin), timeout=90)
    return daemon


def ready(layout: Layout, authority: Authority, client: Pair, path: str = "/readyz") -> bool:
    """Whether `path` answers ok."""
    context = ssl.create_default_context(cafile=str(authority.pair.certificate))
    context.load_cert_chain(client.certificate, client.key)
    connection = http.client.HTTPSConnection("127.0.0.1", layout.api_port, timeout=3, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
