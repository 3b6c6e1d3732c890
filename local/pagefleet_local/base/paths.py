"""Where everything of one local cluster lives. Decides names only; creates nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HIGHEST_PORT = 65535


class BadSetting(ValueError):
    """A setting of the environment cannot be used; the message is for the user."""


def cache() -> Path:
    """What is built or downloaded once and outlives every cluster (PAGEFLEET_CACHE).

    Under sudo it is in root's home: `sudo -E` leaves HOME to the caller, who could not write into what root makes there.
    """
    home = "~root" if os.geteuid() == 0 and "SUDO_UID" in os.environ else "~"
    return Path(os.environ.get("PAGEFLEET_CACHE") or Path(f"{home}/.cache/pagefleet").expanduser())


@dataclass(frozen=True)
class Layout:
    """One cluster's folders, ports, and addresses. Two layouts that differ in all of them can run side by side.

    `node_ip` lies on `bridge`, an interface of our own without ports: the cluster needs no network of the machine's,
    and the API server refuses loopback addresses in Endpoints. `state` is on disk, `run` holds sockets (short: a Unix socket's path has at most 107 bytes).
    Without a node (`has_node`) no container, pod network, or rule of a kubelet on the machine belongs to the cluster.
    """

    state: Path = Path("/var/lib/pagefleet")
    run: Path = Path("/run/pagefleet")
    api_port: int = 6443
    etcd_port: int = 23790
    first_component_port: int = 16250
    bridge: str = "pagefleet0"
    pod_cidr: str = "10.244.0.0/24"
    node_ip: str = "10.243.0.1"
    service_cidr: str = "10.96.0.0/16"
    node: str = "pagefleet-local"
    has_node: bool = True

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def pids(self) -> Path:
        return self.state / "pids"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd/containerd.sock"

    @property
    def dns_ip(self) -> str:
        return self.node_ip

    @property
    def api_service_ip(self) -> str:
        return self.service_cidr.rsplit(".", 1)[0] + ".1"


def layout() -> Layout:
    """The default cluster's layout, moved by PAGEFLEET_STATE and PAGEFLEET_API_PORT. Raises BadSetting.

    The kernel names what is mounted below `state` by whole paths without links.
    """
    default = Layout()
    port = os.environ.get("PAGEFLEET_API_PORT") or str(default.api_port)
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= HIGHEST_PORT):
        raise BadSetting(f"PAGEFLEET_API_PORT={port} is no port: set a number from 1 to {HIGHEST_PORT}")
    return Layout(state=Path(os.environ.get("PAGEFLEET_STATE") or default.state).resolve(), api_port=int(port))


def control_plane_layout() -> Layout:
    """The layout of the test suite's control plane: no node, and nothing in common with the default cluster.

    PAGEFLEET_TEST_STATE moves its folders, for a run in a network namespace of its own.
    """
    state = Path(os.environ.get("PAGEFLEET_TEST_STATE") or "/var/lib/pagefleet-test")
    return Layout(
        state=state,
        run=Path("/run") / state.name,
        api_port=16443,
        etcd_port=23890,
        first_component_port=16350,
        bridge="pagefleet1",
        pod_cidr="10.245.0.0/24",
        node_ip="10.243.1.1",
        service_cidr="10.97.0.0/16",
        node="pagefleet-test",
        has_node=False,
    )
