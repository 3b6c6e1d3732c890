"""Programs from Debian's packages, unpacked into the cache and never installed: a Docker or containerd that is already
on the machine stays as it is, and no package starts a service."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pagefleet_local.base import paths
from pagefleet_local.base.console import stage

# program -> (package, path inside it)
PROGRAMS = {
    "containerd": ("containerd", "usr/bin/containerd"),
    "ctr": ("containerd", "usr/bin/ctr"),
    "runc": ("runc", "usr/sbin/runc"),
    "etcd": ("etcd-server", "usr/bin/etcd"),
    "prometheus": ("prometheus", "usr/bin/prometheus"),
    "promtool": ("prometheus", "usr/bin/promtool"),
    "prometheus-alertmanager": ("prometheus-alertmanager", "usr/bin/prometheus-alertmanager"),
    "docker-registry": ("docker-registry", "usr/bin/docker-registry"),
}
CNI = ("containernetworking-plugins", "usr/lib/cni")
GO = ("golang-1.19-go", "golang-1.19-src")
# Tools the kubelet, kube-proxy and DNS call by name. They start no service and conflict with nothing.
HOST_TOOLS = {
    "iptables": "iptables",
    "conntrack": "conntrack",
    "dnsmasq": "dnsmasq-base",
    "ethtool": "ethtool",
    "socat": "socat",
    "ip": "iproute2",
    "mount": "mount",
    "gcc": "gcc",
}


class AssetError(RuntimeError):
    """A program that the cluster needs is not available; the message names it and the fix."""


def tool(name: str) -> Path:
    """The path of a program, its package fetched and unpacked the first time. Raises AssetError."""
    package, inside = PROGRAMS[name]
    return unpacked(package) / inside


def cni_plugins() -> Path:
    package, inside = CNI
    return unpacked(package) / inside


def unpacked(*packages: str) -> Path:
    """The folder that `packages` are unpacked in together (complete or absent)."""
    target = paths.cache() / "debs" / "+".join(packages)
    if target.is_dir():
        return target
    with locked("debs"):
        if not target.is_dir():
            _fetch(packages, target)
    return target


def ensure_host_tools() -> None:
    """Install the missing HOST_TOOLS with apt-get."""
    missing = sorted({package for program, package in HOST_TOOLS.items() if shutil.which(program) is None})
    if missing:
        with stage(f"apt-get install {' '.join(missing)}"):
            apt("update")
            apt("install", "-y", "--no-install-recommends", *missing)


def apt(*arguments: str, cwd: Path | None = None, options: Sequence[str] = ()) -> None:
    """Run apt-get quietly. Raises AssetError with the end of its output."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-q", *[f"-o{option}" for option in options], *arguments]
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise AssetError(f"apt-get {' '.join(arguments)}: {result.stderr.strip()[-600:]}")


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock `name`: two runs at once build nothing twice."""
    folder = paths.cache() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(packages: Sequence[str], target: Path) -> None:
    work = target.with_name(f".{target.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with stage(f"Debian package {' and '.join(packages)}"):
        try:
            _download(packages, work)
        except AssetError:
            apt("update")
            _download(packages, work)
        for deb in work.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(deb), str(work / "root")], check=True)
        (work / "root").rename(target)
    shutil.rmtree(work, ignore_errors=True)


def _download(packages: Sequence[str], work: Path) -> None:
    # apt's own sandbox user cannot write below a root-owned folder; the download is verified all the same.
    apt("download", *packages, cwd=work, options=("APT::Sandbox::User=root",))
