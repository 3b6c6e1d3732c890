"""Protects `make down` on real tables, in a network namespace of its own: the rules of hundreds of Services go at once and others' rules stay.
With a call of iptables for each chain the same takes more than ten seconds."""

from __future__ import annotations

import subprocess
import sys

from pagefleet_local.node.network import COMMENT

BRIDGE = "pagefleet0"
CHAINS = 400  # of kube-proxy, about as many as forty Services with an endpoint each have
SECONDS = 8.0  # 0.1 on an idle machine
PROGRAM = """
import subprocess, time
from pagefleet_local.node import rules
def restore(lines):
    subprocess.run(["iptables-restore", "--noflush"], input="\\n".join(["*nat", *lines, "COMMIT", ""]), text=True, check=True)
names = [f"KUBE-SVC-{number:04}" for number in range(%d)]
restore([":KUBE-SERVICES - [0:0]", ":DOCKER - [0:0]", *(f":{name} - [0:0]" for name in names), "-A PREROUTING -j KUBE-SERVICES",
         "-A PREROUTING -j DOCKER", '-A POSTROUTING -s 10.244.0.0/24 -m comment --comment "%s %s" -j MASQUERADE',
         *(f"-A KUBE-SERVICES -d 10.96.1.{number %% 250}/32 -p tcp -m tcp --dport {number + 1} -j {name}" for number, name in enumerate(names)),
         *(f"-A {name} -p tcp -j DNAT --to-destination 10.244.0.{number %% 250}:80" for number, name in enumerate(names))])
began = time.monotonic()
rules.remove("iptables", "nat", "%s", kube=True)
print(round(time.monotonic() - began, 2))
left = [line for line in rules.saved("iptables", "nat") if line[:1] in "-:" and "ACCEPT" not in line]
assert left == [":DOCKER - [0:0]", "-A PREROUTING -j DOCKER"], left
"""


def test_the_rules_of_hundreds_of_services_go_at_once_and_others_stay() -> None:
    program = PROGRAM % (CHAINS, COMMENT, BRIDGE, BRIDGE)
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < SECONDS
