"""kubelet and kube-proxy: the node itself. Webhook authentication and authorisation, no anonymous or read-only port."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from pagefleet_local.assets.kubernetes import Binaries
from pagefleet_local.base.certificates import Authority, Pair
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import Daemon
from pagefleet_local.controlplane.etcd import listens

# From this minor version on the kubelet speaks CRI only; the endpoint is configuration; it may refuse cgroup v1 (and does from 1.35 on).
CRI_ONLY, ENDPOINT_IN_CONFIG, MAY_REFUSE_CGROUP_V1 = 24, 27, 31
RESOLV_CONF = "resolv.conf"
CGROUP_V2 = Path("/sys/fs/cgroup/cgroup.controllers")


def start(layout: Layout, binaries: Binaries, authority: Authority) -> list[Daemon]:
    return [_kubelet(layout, binaries, authority), _proxy(layout, binaries, authority)]


def _kubelet(layout: Layout, binaries: Binaries, authority: Authority) -> Daemon:
    server = f"https://127.0.0.1:{layout.api_port}"
    client = authority.issue("kubelet", f"system:node:{layout.node}", ["system:nodes"])
    serving = authority.issue("kubelet-serving", f"system:node:{layout.node}", hosts=[layout.node, layout.node_ip])
    config = authority.kubeconfig(layout.state / "kubelet.kubeconfig", server, client)
    port = layout.first_component_port + 2
    document = configuration(
        layout, authority.pair.certificate, serving, binaries.minor, cgroup_v1=not CGROUP_V2.exists()
    )
    _without_upstream(layout)
    path = layout.state / "kubelet.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    daemon = Daemon(layout, "kubelet")
    daemon.start(
        [
            binaries["kubelet"],
            f"--config={path}",
            f"--kubeconfig={config}",
            f"--hostname-override={layout.node}",
            f"--node-ip={layout.node_ip}",
            f"--root-dir={layout.state / 'kubelet'}",
            f"--cert-dir={layout.pki}",
            *runtime_flags(layout, binaries.minor),
        ]
    )
    daemon.wait(lambda: listens(port, layout.node_ip), timeout=60)
    return daemon


def configuration(layout: Layout, ca: Path, serving: Pair, minor: int, *, cgroup_v1: bool) -> dict[str, Any]:
    """The KubeletConfiguration of a minor version. A field that it does not know would stop the kubelet: its decoding is strict. Pure."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.node_ip,
        "port": layout.first_component_port + 2,
        "readOnlyPort": 0,
        "healthzPort": layout.first_component_port + 3,
        "healthzBindAddress": "127.0.0.1",
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(ca)},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [layout.dns_ip],
        "clusterDomain": "cluster.local",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "5s",
        "maxPods": 110,
        "serializeImagePulls": True,
        "resolvConf": str(layout.state / RESOLV_CONF),
        **({"containerRuntimeEndpoint": _endpoint(layout)} if minor >= ENDPOINT_IN_CONFIG else {}),
        **({"failCgroupV1": False} if cgroup_v1 and minor >= MAY_REFUSE_CGROUP_V1 else {}),
    }


def runtime_flags(layout: Layout, minor: int) -> list[str]:
    """The flags that choose containerd, as far as a minor version has them. Pure."""
    chosen = ["--container-runtime=remote"] if minor < CRI_ONLY else []
    return [*chosen, *([f"--container-runtime-endpoint={_endpoint(layout)}"] if minor < ENDPOINT_IN_CONFIG else [])]


def _endpoint(layout: Layout) -> str:
    return f"unix://{layout.containerd_socket}"


def _without_upstream(layout: Layout) -> None:
    """Pods with dnsPolicy Default get no upstream: nothing in the fleet asks for names outside the cluster."""
    (layout.state / RESOLV_CONF).write_text("options ndots:5\n")


def _proxy(layout: Layout, binaries: Binaries, authority: Authority) -> Daemon:
    client = authority.issue("kube-proxy", "system:kube-proxy")
    server = f"https://127.0.0.1:{layout.api_port}"
    config = authority.kubeconfig(layout.state / "kube-proxy.kubeconfig", server, client)
    health, metrics = layout.first_component_port + 4, layout.first_component_port + 5
    daemon = Daemon(layout, "kube-proxy")
    daemon.start(
        [
            binaries["kube-proxy"],
            f"--kubeconfig={config}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={layout.pod_cidr}",
            f"--hostname-override={layout.node}",
            # The machine's own conntrack limits stay as they are (and may not be writable).
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            "--iptables-min-sync-period=200ms",
            f"--healthz-bind-address=127.0.0.1:{health}",
            f"--metrics-bind-address=127.0.0.1:{metrics}",
        ]
    )
    daemon.wait(lambda: listens(health), timeout=60)
    return daemon


def advertise(layout: Layout, authority: Authority, resource: str, count: int) -> None:
    """Give the Node `count` of the extended resource `resource`. Raises OSError when the API server refuses."""
    escaped = resource.replace("~", "~0").replace("/", "~1")
    patch = json.dumps([{"op": "add", "path": f"/status/capacity/{escaped}", "value": str(count)}]).encode()
    context = ssl.create_default_context(cafile=str(authority.pair.certificate))
    admin = authority.issue("admin", "pagefleet-admin", ["system:masters"])
    context.load_cert_chain(admin.certificate, admin.key)
    request = urllib.request.Request(
        f"https://127.0.0.1:{layout.api_port}/api/v1/nodes/{layout.node}/status",
        data=patch,
        method="PATCH",
        headers={"Content-Type": "application/json-patch+json"},
    )
    with urllib.request.urlopen(request, context=context, timeout=10):  # noqa: S310
        return
