"""Takes a local cluster down completely, also after a crash or a half-made start, and can list what is left.

It needs no record of what was started. Processes are found by the mark in their environment and by our paths in their
command line, mounts below our folders, network namespaces and iptables rules by our addresses.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from pagefleet_local.base.paths import Layout
from pagefleet_local.base.preflight import own_folder
from pagefleet_local.base.processes import end_process, marked, started
from pagefleet_local.node import rules, sysctls
from pagefleet_local.node.network import run

# Stopped first: what would start new containers or rules while the rest is being removed.
MAKERS = ("kubelet", "kube-proxy", "dns-watcher", "kube-controller-manager", "kube-scheduler")
TABLES = ("nat", "filter", "mangle")
# What writes chains and cgroups of these names, also as a part of a whole cluster in one program (k3s, MicroK8s).
KUBELETS = ("kubelet", "kube-proxy", "k3s-server", "k3s-agent", "kubelite")
CGROUPS = Path("/sys/fs/cgroup")


def down(layout: Layout) -> None:
    """Remove processes, containers, mounts, namespaces, interfaces, rules, cgroups and files of one cluster. Put the kernel's settings back.

    Raises Refused where its folder is somebody else's.
    """
    own_folder(layout)
    _end([pid for name in MAKERS for pid in _named(layout, name)])
    _end_containers(layout)
    _end(marked(layout))
    _unmount(layout)
    _namespaces(layout)
    _rules(layout)
    if Path(f"/sys/class/net/{layout.bridge}").exists():
        run("ip", "link", "delete", layout.bridge, check=False)
    _cgroups(layout)
    sysctls.put_back(layout)
    _files(layout)


def _files(layout: Layout) -> None:
    """Delete the folders, those by which `own_folder` knows a cluster's last: an interrupted removal goes on in the next one."""
    for path in layout.state.glob("*"):
        if path.is_dir() and path not in (layout.logs, layout.pki):
            shutil.rmtree(path, ignore_errors=True)
        elif not path.is_dir():
            path.unlink(missing_ok=True)
    for folder in (layout.state, layout.run):
        shutil.rmtree(folder, ignore_errors=True)


def _end(pids: list[int]) -> None:
    """End these processes, all at once: each may take some seconds."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    for pid in pids:
        end_process(pid, 5.0)


def leftovers(layout: Layout) -> list[str]:
    """What is still there of the cluster, one line each; empty when it is gone."""
    lines = [f"process {pid}" for pid in {*marked(layout), *_containers(layout)}]
    lines += [f"mount {mount}" for mount in _mounts(layout)]
    lines += [f"network namespace {name}" for name in _our_namespaces(layout)]
    lines += [f"interface {layout.bridge}"] if Path(f"/sys/class/net/{layout.bridge}").exists() else []
    lines += [f"iptables {table} {rule}" for table in TABLES for rule in _our_rules(layout, table)]
    lines += [f"cgroup {path}" for path in _our_cgroups()] if _owns_kubelet_names(layout) else []
    lines += [f"folder {folder}" for folder in (layout.state, layout.run) if folder.exists()]
    return lines


def _named(layout: Layout, name: str) -> list[int]:
    processes = []
    for pid in marked(layout):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if Path(words[0]).name == name or (name == "dns-watcher" and "pagefleet_local.node.dns" in words):
                processes.append(pid)
    return processes


def _containers(layout: Layout) -> list[int]:
    """Shims of our containerd and everything below them."""
    if not layout.has_node:
        return []
    parents: dict[int, int] = {}
    shims: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            if "containerd-shim" in command and str(layout.run) in command:
                shims.add(pid)
    ours = set(shims)
    while True:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        if not more:
            return sorted(ours)
        ours |= more


def _end_containers(layout: Layout) -> None:
    """Send SIGKILL: nothing in a cluster that is taken down needs a graceful end."""
    end = time.monotonic() + 15
    while (living := [pid for pid in _containers(layout) if started(pid) is not None]) and time.monotonic() < end:
        for pid in reversed(living):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _mounts(layout: Layout) -> list[str]:
    folders = (f"{layout.state}/", f"{layout.run}/")
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(folders)]


def _unmount(layout: Layout) -> None:
    for point in sorted(_mounts(layout), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def _our_namespaces(layout: Layout) -> list[str]:
    """CNI's namespaces whose pod link holds an address of our pod network."""
    if not layout.has_node:  # one without a link may be a pod's of another cluster, which is being made
        return []
    names, alone = [], _owns_kubelet_names(layout)
    for path in Path("/run/netns").glob("cni-*"):
        shown = subprocess.run(
            ["ip", "-n", path.name, "-o", "-4", "address"], capture_output=True, text=True, check=False
        )
        if is_our_namespace(layout, shown.stdout, alone=alone):
            names.append(path.name)
    return names


def is_our_namespace(layout: Layout, shown: str, *, alone: bool) -> bool:
    """Whether a namespace of CNI is ours, by its addresses as `ip` shows them. `alone`: no other kubelet runs on the machine.

    Another cluster's pods may have addresses of our pod network, which is also flannel's. Beside it only those count that our IPAM gave.
    Without one a namespace that cannot be entered any more, or that lost its link, is what a crash of ours has left behind.
    """
    found = [re.findall(r" inet ([\d.]+)/", line) for line in shown.splitlines() if " lo " not in line]
    addresses = {address for line in found for address in line}
    if not alone:
        given = layout.state / "cni/addresses" / layout.bridge
        return any((given / address).exists() for address in addresses)
    prefix = layout.pod_cidr.rsplit(".", 1)[0] + "."
    return not addresses or any(address.startswith(prefix) for address in addresses)


def _namespaces(layout: Layout) -> None:
    for name in _our_namespaces(layout):
        run("ip", "netns", "delete", name, check=False)
        Path("/run/netns", name).unlink(missing_ok=True)


def _owns_kubelet_names(layout: Layout) -> bool:
    """Whether chains and cgroups named by kubelet and kube-proxy are ours: no other kubelet runs on the machine."""
    return layout.has_node and not any(_other_kubelets(layout))


def _other_kubelets(layout: Layout) -> Iterator[tuple[int, str]]:
    """The processes that are not ours and write such chains and cgroups, here or in a container."""
    ours = set(marked(layout))
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # `started` is None for a zombie: killed, and not reaped yet by whoever adopted it.
            pid, name = int(entry.name), (entry / "comm").read_text().strip()
            if name in KUBELETS and pid not in ours and started(pid) is not None:
                yield pid, name


def neighbour(layout: Layout) -> str:
    """The other kubelet that has this machine's network, as NAME (pid N); "" where there is none. One in a container, such as kind's,
    has a network of its own."""
    network = Path("/proc/self/ns/net").readlink()
    for pid, name in _other_kubelets(layout):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/ns/net").readlink() == network:
                return f"{name} (pid {pid})"
    return ""


def _our_rules(layout: Layout, table: str) -> list[str]:
    """Rules and chains of ours in `table`, in iptables-save's words."""
    return rules.ours(rules.saved("iptables", table), layout.bridge, kube=_owns_kubelet_names(layout))


def _rules(layout: Layout) -> None:
    """Remove our rules and, where no other kubelet runs, those of kubelet and kube-proxy. These are hundreds, for IPv4 and IPv6."""
    if not layout.has_node or shutil.which("iptables") is None:
        return
    kube = _owns_kubelet_names(layout)
    for program in ("iptables", "ip6tables"):
        for table in TABLES:
            rules.remove(program, table, layout.bridge, kube=kube)


def _our_cgroups() -> list[Path]:
    roots = [CGROUPS, *CGROUPS.glob("*")]
    return [root / name for root in roots for name in ("kubepods", "kube-proxy") if (root / name).is_dir()]


def _cgroups(layout: Layout) -> None:
    if not _owns_kubelet_names(layout):
        return
    # A killed process stays in its cgroup until it is reaped.
    end = time.monotonic() + 15
    while (roots := _our_cgroups()) and time.monotonic() < end:
        for root in roots:
            for folder, _, _ in os.walk(root, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        time.sleep(0.1)
