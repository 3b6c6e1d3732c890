"""Protects other clusters on the machine: what takes ours down takes nothing of theirs, and ours does not start beside them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pagefleet_local.base import paths
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.preflight import Refused, own_folder, resolver_port
from pagefleet_local.base.processes import marked
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.up import check


def fleet_runs() -> bool:
    """Whether somebody runs `make check` beside `make up`, whose kubelet is found as well."""
    return bool(marked(paths.layout()))


@pytest.mark.parametrize("name", ["kubelet", "k3s-server", "k3s-agent", "kubelite"])
def test_rules_and_cgroups_of_another_cluster_are_not_ours(tmp_path: Path, name: str) -> None:
    """kubelet and kube-proxy have the same names for them everywhere, and k3s and MicroK8s hold both in one process."""
    program = shutil.copy(shutil.which("sleep") or "sleep", tmp_path / name)
    with subprocess.Popen([program, "60"]) as process:
        try:
            layout = Layout(state=tmp_path / "state")
            assert not cleanup._owns_kubelet_names(layout)
            # A start is refused: the kube-proxies of both would write the same chains.
            assert (process.pid, name) in cleanup._other_kubelets(layout)
            assert cleanup.neighbour(layout).startswith(name) or fleet_runs()
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


def test_a_folder_with_something_else_in_it_is_not_taken_for_a_cluster_s(tmp_path: Path) -> None:
    """PAGEFLEET_STATE=/data: `make up` and `make down` deleted what its user had there."""
    work = tmp_path / "work.txt"
    work.touch()
    layout = Layout(state=tmp_path, run=tmp_path / "run", bridge="pagefleet-no", has_node=False)
    for refused in (lambda: cleanup.down(layout), lambda: own_folder(layout)):
        with pytest.raises(Refused, match=f"{tmp_path} holds work.txt and is no cluster's folder"):
            refused()
    assert work.exists()


@pytest.mark.parametrize("found", [[], ["logs"], ["logs", "pki"], ["logs", "pki", "etcd", "containerd"]])
def test_a_cluster_s_folder_is_removed_also_a_half_made_one(tmp_path: Path, found: list[str]) -> None:
    layout = Layout(state=tmp_path / "state", run=tmp_path / "run", bridge="pagefleet-no", has_node=False)
    for name in found:
        (layout.state / name / "inside").mkdir(parents=True)
    if "etcd" in found:
        layout.kubeconfig.touch()
    cleanup.down(layout)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("port", ["abc", "0", "70000", "-1", "1e3"])
def test_a_port_that_is_none_is_told(port: str) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "pagefleet-local"), "kubeconfig"],
        env={**os.environ, "PAGEFLEET_API_PORT": port}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (
        2, f"refused: PAGEFLEET_API_PORT={port} is no port: set a number from 1 to 65535\n"
    )  # fmt: skip


def test_a_folder_of_the_environment_is_a_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is mounted below it is found, and unmounted, by the kernel's name for it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAGEFLEET_STATE", "link/fleet")
    assert paths.layout().state == tmp_path / "data/fleet"


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
