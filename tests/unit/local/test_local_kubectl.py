"""Protects that two clusters at one address are read apart: each kubeconfig's kubectl remembers API resources beside it."""

from __future__ import annotations

from pathlib import Path

from pagefleet_local.fleet.kubectl import Kubectl


async def test_what_kubectl_remembers_of_a_cluster_is_beside_its_kubeconfig(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("old", "new")]
    said = [
        (await Kubectl(folder / "admin.kubeconfig", Path("/bin/echo")).run("get", "pods")).out for folder in folders
    ]
    words = [line.split() for line in said]
    caches = [line[line.index("--cache-dir") + 1] for line in words]
    assert caches == [str(folder / "kubectl-cache") for folder in folders]
    assert all(line[-2:] == ["get", "pods"] for line in words)
