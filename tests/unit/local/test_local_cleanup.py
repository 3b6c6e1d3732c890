"""Protects other clusters on the machine: what takes ours down takes nothing of theirs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pagefleet_local.base.paths import Layout
from pagefleet_local.lifecycle import cleanup


@pytest.mark.parametrize("name", ["kubelet", "k3s-server", "k3s-agent", "kubelite"])
def test_rules_and_cgroups_of_another_cluster_are_not_ours(tmp_path: Path, name: str) -> None:
    """kubelet and kube-proxy have the same names for them everywhere, and k3s and MicroK8s hold both in one process."""
    program = shutil.copy(shutil.which("sleep") or "sleep", tmp_path / name)
    with subprocess.Popen([program, "60"]) as process:
        try:
            assert not cleanup._owns_kubelet_names(Layout(state=tmp_path / "state"))
        finally:
            process.kill()


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
