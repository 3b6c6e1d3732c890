"""Protects `make down`: the rules and chains of a local cluster go in one transaction for each table, and others' rules stay."""

from __future__ import annotations

import pytest

from pagefleet_local.node.network import COMMENT
from pagefleet_local.node.rules import ours, removal

BRIDGE = "pagefleet0"
OWN = f'-A POSTROUTING -s 10.244.0.0/24 -m comment --comment "{COMMENT} {BRIDGE}" -j MASQUERADE'
OTHERS = [
    ":PREROUTING ACCEPT [0:0]", ":DOCKER - [0:0]", "-A PREROUTING -j DOCKER",
    f'-A POSTROUTING -m comment --comment "{COMMENT} other9" -j MASQUERADE',
]  # fmt: skip
KUBE = [
    ":KUBE-SERVICES - [0:0]", ":KUBE-SVC-A - [0:0]", '-A PREROUTING -m comment --comment "kubernetes service" -j KUBE-SERVICES',
    "-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-A", "-A KUBE-SVC-A -j DNAT --to-destination 10.243.0.1:6443",
]  # fmt: skip


@pytest.mark.parametrize(("kube", "found"), [(True, [OWN, *KUBE]), (False, [OWN])])
def test_only_ours_are_found(kube: bool, found: list[str]) -> None:
    assert ours([*OTHERS, OWN, *KUBE], BRIDGE, kube=kube) == found


def test_a_transaction_removes_references_before_chains() -> None:
    assert removal("nat", []) == ""
    assert removal("nat", [OWN, *KUBE]).splitlines() == [
        "*nat", OWN.replace("-A", "-D", 1), KUBE[2].replace("-A", "-D", 1),
        "-F KUBE-SERVICES", "-F KUBE-SVC-A", "-X KUBE-SERVICES", "-X KUBE-SVC-A", "COMMIT",
    ]  # fmt: skip
