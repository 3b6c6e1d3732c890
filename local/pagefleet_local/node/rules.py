"""The cluster's iptables rules: which are ours, and their removal in one transaction for each table.

A call of iptables for each of kube-proxy's chains takes minutes on a busy machine: every call reads and writes the whole table.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from pagefleet_local.node.network import COMMENT

TRIES = 3  # somebody else may change a table between our reading and our writing
_KUBE = re.compile(r"^(:KUBE-|-A KUBE-)|-j KUBE-")


def saved(program: str, table: str) -> list[str]:
    """The lines of a table; [] where the kernel has none. `program` is iptables or ip6tables."""
    shown = subprocess.run([f"{program}-save", "-t", table], capture_output=True, text=True, check=False)
    return shown.stdout.splitlines()


def ours(lines: Sequence[str], bridge: str, *, kube: bool) -> list[str]:
    """Our own rules of a table; with `kube` also the chains and rules of kubelet and kube-proxy. Pure."""
    own = f"{COMMENT} {bridge}"
    return [line for line in lines if (line.startswith("-A") and own in line) or (kube and _KUBE.search(line))]


def removal(table: str, found: Sequence[str]) -> str:
    """The transaction that removes what `ours` has found, for iptables-restore --noflush; "" where that is nothing. Pure.

    First the rules in others' chains, then those in the chains, and then the chains, to which nothing refers any more.
    """
    rules = [
        f"-D{line.removeprefix('-A')}" for line in found if line.startswith("-A") and not line.startswith("-A KUBE-")
    ]
    chains = [line[1:].split()[0] for line in found if line.startswith(":KUBE-")]
    lines = [*rules, *(f"{verb} {chain}" for verb in ("-F", "-X") for chain in chains)]
    return "\n".join([f"*{table}", *lines, "COMMIT", ""]) if lines else ""


def remove(program: str, table: str, bridge: str, *, kube: bool) -> None:
    """Remove what is ours. What stays after some tries is shown by `cleanup.leftovers`."""
    for _ in range(TRIES):
        script = removal(table, ours(saved(program, table), bridge, kube=kube))
        if not script:
            return
        subprocess.run(
            [f"{program}-restore", "-w", "--noflush"], input=script, capture_output=True, text=True, check=False
        )
