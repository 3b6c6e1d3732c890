"""Checks the machine before anything is started. Each refusal names the missing program or permission and the fix."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pagefleet_local.base.paths import Layout

NEEDED_CAPABILITIES = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN", 18: "CAP_SYS_CHROOT"}
COMPONENT_PORTS = 6
DNS_PORT = 53
IP_FREEBIND = 15  # linux/in.h: an address may be bound that no interface has yet


class Refused(RuntimeError):
    """This machine cannot run the cluster as asked; the message is for the user."""


def check(layout: Layout, *, node: bool, running: bool) -> None:
    """Raises Refused. Ports are only checked when this cluster is not `running` already."""
    if os.geteuid() != 0:
        raise Refused("a real node needs root (namespaces, mounts, iptables): run this with sudo")
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        raise Refused(f"the local fleet runs on Linux x86_64, not on {os.uname().sysname} {os.uname().machine}")
    if not Path("/usr/bin/apt-get").exists():
        raise Refused(
            "apt-get is not here: the local fleet takes etcd, containerd and the sources from Debian's packages"
        )
    own_folder(layout)
    if node:
        _capabilities()
        _cgroups()
    if not running:
        _ports(layout)


def own_folder(layout: Layout) -> None:
    """Raises Refused where `state` is a folder with something else in it: it is deleted with the cluster.

    A cluster makes its folders of logs and keys first, and deletes them last.
    """
    first = (layout.logs, layout.pki)
    if layout.state.exists() and not all(folder.is_dir() for folder in first):
        others = sorted(path.name for path in layout.state.iterdir() if path not in first)
        if others:
            raise Refused(
                f"{layout.state} holds {others[0]} and is no cluster's folder: PAGEFLEET_STATE must name a folder of the cluster's own, "
                "which is deleted with it"
            )


def _capabilities() -> None:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    effective = int(line.split()[1], 16)
    lacking = [name for bit, name in NEEDED_CAPABILITIES.items() if not effective >> bit & 1]
    if lacking:
        raise Refused(f"{', '.join(lacking)} is missing: start this container or machine with it (or --privileged)")


def _cgroups() -> None:
    """Version 1 needs the controllers mounted, version 2 needs them delegated."""
    v2 = Path("/sys/fs/cgroup/cgroup.controllers")
    have = set(v2.read_text().split()) if v2.exists() else {path.name for path in Path("/sys/fs/cgroup").glob("*")}
    lacking = {"cpu", "memory", "pids", "cpuset"} - have
    if lacking:
        raise Refused(f"cgroup controllers {', '.join(sorted(lacking))} are not available below /sys/fs/cgroup")


def _ports(layout: Layout) -> None:
    used = {
        layout.api_port: "kube-apiserver (PAGEFLEET_API_PORT moves it)",
        layout.etcd_port: "etcd",
        layout.etcd_port + 1: "etcd's peers",
        **{layout.first_component_port + n: "a Kubernetes component" for n in range(COMPONENT_PORTS)},
    }
    for port, what in used.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                raise Refused(f"port {port}, which {what} needs, is in use by {_owner(port)}") from None
    if layout.has_node:
        resolver_port(layout.dns_ip)


def resolver_port(address: str, port: int = DNS_PORT) -> None:
    """A resolver that listens on every address takes ours too; one with an address of its own, such as systemd's, does not."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(type=kind) as probe:
            probe.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                raise Refused(
                    f"port {port} of {address}, which the cluster's DNS needs, is in use by {_owner(port)}: "
                    "let that listen on its own addresses only"
                ) from None


def _owner(port: int) -> str:
    """The name and id of the process that listens on `port`."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "0A":
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in inodes for link in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue
    return "another program"
