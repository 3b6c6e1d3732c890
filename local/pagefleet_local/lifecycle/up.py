"""Brings a local cluster up: idempotent, and whole or not at all."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from pagefleet_local.assets import debian, kubernetes
from pagefleet_local.base import paths, preflight
from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.console import stage
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import Daemon, StartFailed
from pagefleet_local.base.sudo import give
from pagefleet_local.controlplane import apiserver, controllers, etcd
from pagefleet_local.fleet.kubectl import BINARY
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.node import containerd, dns, kubelet, network, sysctls

CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("containerd", "kubelet", "kube-proxy", "dnsmasq", "dns-watcher")
# Seconds that a cluster whose programs all run is given to answer: the machine may be busy, or was asleep.
PATIENCE = 90.0


@dataclass(frozen=True)
class Options:
    """`accelerators` of the extended resource `accelerator` are put on the Node, so that GPU scheduling runs."""

    layout: Layout = field(default_factory=paths.layout)
    accelerator: str = "nvidia.com/gpu"
    accelerators: int = 8


@dataclass(frozen=True)
class Cluster:
    kubeconfig: Path
    layout: Layout


def up(options: Options) -> Cluster:
    """Start what is missing. Raises Refused, AssetError or StartFailed; then nothing half-made stays."""
    layout = options.layout
    cluster = Cluster(layout.kubeconfig, layout)
    if healthy(options) or _recovers(options):
        return cluster
    if layout.state.exists() or cleanup.leftovers(layout):
        with stage("cleaning up after an earlier, unfinished run"):
            cleanup.down(layout)
    _fit(layout)
    prepare(node=layout.has_node)
    try:
        _start(options)
    except BaseException:
        cleanup.down(layout)
        raise
    return cluster


def check(layout: Layout) -> None:
    """Raises Refused for what would stop `up`, before anything is built. Ports that remains of our own may hold are checked after those
    were cleaned up."""
    if layout.state.exists():
        preflight.check(layout, node=layout.has_node, running=True)
    else:
        _fit(layout)


def _fit(layout: Layout) -> None:
    """Raises Refused where nothing of ours runs and this machine cannot run it."""
    preflight.check(layout, node=layout.has_node, running=False)
    if layout.has_node and (other := cleanup.neighbour(layout)):
        raise preflight.Refused(
            f"{other} runs on this machine: its kube-proxy and the fleet's would overwrite each other's rules; stop it, or use make kind"
        )


def prepare(*, node: bool = True) -> None:
    """Fetch or build every program, so that a start is quick. Idempotent."""
    kubernetes.binaries(kubernetes.COMPONENTS if node else CONTROL_PLANE)
    debian.tool("etcd")
    if node:
        debian.ensure_host_tools()
        for name in ("containerd", "runc"):
            debian.tool(name)
        debian.cni_plugins()


def healthy(options: Options) -> bool:
    """Whether every daemon runs and the API server (and the Node) is ready."""
    layout = options.layout
    if not _all_run(layout):
        return False
    authority = Authority(layout.pki)
    admin = authority.issue("admin", "pagefleet-admin", ["system:masters"])
    return apiserver.ready(layout, authority, admin) and (not layout.has_node or node_ready(layout))


def _all_run(layout: Layout) -> bool:
    names = ("etcd", *CONTROL_PLANE, *(NODE if layout.has_node else ()))
    return all(Daemon(layout, name).pid() is not None for name in names)


def _recovers(options: Options) -> bool:
    """Whether a cluster that does not answer at the moment does soon. Taking it down would delete what its user has in it."""
    if not _all_run(options.layout):
        return False
    with stage("the cluster runs and does not answer: waiting for it"), contextlib.suppress(StartFailed):
        Daemon(options.layout, "kube-apiserver").wait(lambda: healthy(options), PATIENCE)
        return True
    return False


def _start(options: Options) -> None:
    layout = options.layout
    layout.state.mkdir(parents=True, exist_ok=True, mode=0o755)
    layout.logs.mkdir(exist_ok=True)
    authority = Authority(layout.pki)
    authority.ensure()
    binaries = kubernetes.binaries(kubernetes.COMPONENTS if layout.has_node else CONTROL_PLANE)
    with stage("etcd and kube-apiserver"):
        if layout.has_node:
            sysctls.keep(layout)
            network.start(layout)
        etcd.start(layout, authority)
        apiserver.start(layout, binaries, authority)
        give(layout.kubeconfig)
    with stage("kube-controller-manager and kube-scheduler"):
        controllers.start(layout, binaries, authority)
    if not layout.has_node:
        return
    with stage("containerd, kubelet, kube-proxy"):
        network.run("mount", "--make-rshared", "/")
        containerd.start(layout)
        daemon = kubelet.start(layout, binaries, authority)[0]
    with stage("DNS for Services"):
        dns.start(layout)
    with stage("the Node is Ready"):
        daemon.wait(lambda: node_ready(layout), timeout=60)
        if options.accelerators:
            kubelet.advertise(layout, authority, options.accelerator, options.accelerators)


def node_ready(layout: Layout) -> bool:
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    command = [str(BINARY), "--kubeconfig", str(layout.kubeconfig), "get", "node", layout.node, "-o", path]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout == "True"
