"""The kernel's settings that a node changes and that outlive it: what they were is kept, and put back when the node is taken down.

`route_localnet` matters most: with it and without the kubelet's rule against it, neighbours on the network reach what listens on
127.0.0.1 (CVE-2020-8558).
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from pagefleet_local.base.paths import Layout

NAMES = (
    "net/ipv4/ip_forward",  # network.start, and the CNI plug-in
    "net/ipv4/conf/all/route_localnet",  # kube-proxy, with iptables
    "net/bridge/bridge-nf-call-iptables",
    "vm/overcommit_memory",  # the kubelet (setupKernelTunables)
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
KERNEL = Path("/proc/sys")


def keep(layout: Layout, kernel: Path = KERNEL) -> None:
    """Write down what the settings are before a node changes them. Idempotent."""
    kept = _file(layout)
    if not kept.exists():
        partial = kept.with_suffix(".partial")
        partial.write_text(
            json.dumps({name: (kernel / name).read_text() for name in NAMES if (kernel / name).exists()})
        )
        partial.rename(kept)


def put_back(layout: Layout, kernel: Path = KERNEL) -> None:
    """Give each setting that differs the value that `keep` found."""
    kept = _file(layout)
    for name, value in json.loads(kept.read_text()).items() if kept.exists() else ():
        with contextlib.suppress(OSError):  # of a module that was unloaded
            if (kernel / name).read_text() != value:
                (kernel / name).write_text(value)


def _file(layout: Layout) -> Path:
    return layout.state / "sysctls.json"
