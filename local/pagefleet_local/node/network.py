"""The node's network: an interface for the node's address, and few iptables rules, each with our comment.

Pods hang on routed point-to-point links (CNI's ptp), not on a bridge: every packet between two pods passes the
machine's routing, so Service addresses work without the br_netfilter module.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from pagefleet_local.assets import debian
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import StartFailed

COMMENT = "pagefleet-local"


def start(layout: Layout) -> None:
    """Idempotent."""
    if not Path(f"/sys/class/net/{layout.bridge}").exists():
        run("ip", "link", "add", layout.bridge, "type", "bridge")
    run("ip", "link", "set", layout.bridge, "up")
    run("ip", "address", "replace", f"{layout.node_ip}/32", "dev", layout.bridge)
    # Lets this machine reach Services also when it has no default route; kube-proxy rewrites the address anyway.
    run("ip", "route", "replace", layout.service_cidr, "dev", layout.bridge, "src", layout.node_ip)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    for rule in rules(layout):
        if run("iptables", "-w", "-t", rule[0], "-C", *rule[1:], check=False):
            run("iptables", "-w", "-t", rule[0], "-I", *rule[1:])
    configuration(layout)


def rules(layout: Layout) -> list[list[str]]:
    """Table, chain, match and target of each rule. Docker sets FORWARD's policy to DROP: ours go first."""
    comment = ["-m", "comment", "--comment", f"{COMMENT} {layout.bridge}"]
    return [
        ["filter", "FORWARD", "-s", layout.pod_cidr, *comment, "-j", "ACCEPT"],
        ["filter", "FORWARD", "-d", layout.pod_cidr, *comment, "-j", "ACCEPT"],
        ["nat", "POSTROUTING", "-s", layout.pod_cidr, "!", "-d", "10.240.0.0/12", *comment, "-j", "MASQUERADE"],
    ]


def configuration(layout: Layout) -> None:
    """The CNI configuration, and the plug-ins in a folder of the cluster's own."""
    folder = layout.state / "cni/net.d"
    folder.mkdir(parents=True, exist_ok=True)
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": layout.pod_cidr}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(layout.state / "cni/addresses"),
    }
    plugins = [{"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": ipam}]
    document = {"cniVersion": "0.4.0", "name": layout.bridge, "plugins": plugins}
    (folder / "10-pagefleet.conflist").write_text(json.dumps(document, indent=1))
    source, target = debian.cni_plugins(), layout.state / "cni/bin"
    if not target.is_dir():
        shutil.copytree(source, target)


def run(*command: str, check: bool = True) -> int:
    """One command's exit status. Raises StartFailed with its own words when `check` and it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and result.returncode:
        raise StartFailed(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.returncode
