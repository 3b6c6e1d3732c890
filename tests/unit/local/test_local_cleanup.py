"""Protects other clusters on the machine: what takes ours down takes nothing of theirs, and ours does not start beside them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from pagefleet_local.base.paths import Layout
from pagefleet_local.base.preflight import Refused, resolver_port
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.up import check


@pytest.mark.parametrize("name", ["kubelet", "k3s-server", "k3s-agent", "kubelite"])
def test_rules_and_cgroups_of_another_cluster_are_not_ours(tmp_path: Path, name: str) -> None:
    """kubelet and kube-proxy have the same names for them everywhere, and k3s and MicroK8s hold both in one process."""
    program = shutil.copy(shutil.which("sleep") or "sleep", tmp_path / name)
    with subprocess.Popen([program, "60"]) as process:
        try:
            layout = Layout(state=tmp_path / "state")
            assert not cleanup._owns_kubelet_names(layout)
            # A start is refused: the kube-proxies of both would write the same chains.
            assert cleanup.neighbour(layout) == f"{name} (pid {process.pid})"
        finally:
            process.kill()


def test_a_port_that_is_taken_is_told_before_anything_is_built(tmp_path: Path) -> None:
    """The images take minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        layout = Layout(state=tmp_path / "none", api_port=port, has_node=False)
        with pytest.raises(Refused, match=f"port {port}" if os.geteuid() == 0 else "needs root"):
            check(layout)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_resolver_on_every_address_is_told_and_one_on_its_own_is_not(kind: socket.SocketKind) -> None:
    """With it dnsmasq ended at its start, unnoticed: the fleet came up without DNS, and every later `make up` took it down."""
    for address, taken in (("0.0.0.0", True), ("127.0.0.1", False)):
        with socket.socket(type=kind) as resolver:
            resolver.bind((address, 0))
            if kind == socket.SOCK_STREAM:
                resolver.listen()
            port = resolver.getsockname()[1]
            if taken:
                with pytest.raises(
                    Refused, match=f"port {port} of 10.243.0.1, which the cluster's DNS needs, is in use"
                ):
                    resolver_port("10.243.0.1", port)
            else:
                resolver_port("10.243.0.1", port)


def test_pods_of_another_cluster_keep_their_network(tmp_path: Path) -> None:
    """kubeadm's usual pod network with flannel is 10.244.0.0/16, ours lies in it. `make demo` looks for remains before it looks at ports."""
    layout = Layout(state=tmp_path)
    given = tmp_path / "cni/addresses" / layout.bridge
    given.mkdir(parents=True)
    (given / "10.244.0.5").touch()
    lo = "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n"
    pod = "3: eth0    inet {}/24 brd 10.244.0.255 scope global eth0\\       valid_lft forever preferred_lft forever\n"
    ours, theirs, others = (lo + pod.format(address) for address in ("10.244.0.5", "10.244.0.7", "10.88.0.7"))
    beside = {shown: cleanup.is_our_namespace(layout, shown, alone=False) for shown in (ours, theirs, others, lo, "")}
    assert beside == {ours: True, theirs: False, others: False, lo: False, "": False}
    alone = {shown: cleanup.is_our_namespace(layout, shown, alone=True) for shown in (ours, theirs, others, lo, "")}
    assert alone == {ours: True, theirs: True, others: False, lo: True, "": True}
