"""Protects the fleet's DNS records: Services by their ClusterIP, headless ones by their ready endpoints, none that are gone; and
that their watcher leaves no key behind."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from support.silent_server import SECONDS, asking

from pagefleet_local.node.dns import Records


def service(name: str, cluster_ip: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"clusterIP": cluster_ip}}


def endpoints(name: str, *addresses: str) -> dict[str, Any]:
    subset = {"addresses": [{"ip": address} for address in addresses]}
    return {"metadata": {"name": name, "namespace": "team"}, "subsets": [subset]}


def files(folder: Path) -> dict[str, list[str]]:
    return {path.name: [line.split()[0] for line in path.read_text().splitlines()] for path in folder.iterdir()}


def test_records_follow_lists_and_events(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.replace_endpoints([endpoints("pods", "10.0.0.2", "10.0.0.1"), endpoints("chat", "10.0.0.9")])
    assert files(tmp_path) == {}
    records.replace_services([service("chat", "10.96.0.7"), service("pods", "None")])
    assert files(tmp_path) == {"team.chat": ["10.96.0.7"], "team.pods": ["10.0.0.1", "10.0.0.2"]}
    assert "10.96.0.7 chat.team.svc.cluster.local chat.team.svc" in (tmp_path / "team.chat").read_text()
    records.upsert_endpoints(endpoints("pods", "10.0.0.3"))
    assert files(tmp_path)["team.pods"] == ["10.0.0.3"]
    records.remove_endpoints(endpoints("pods"))
    assert set(files(tmp_path)) == {"team.chat"}
    records.upsert_service(service("chat", "10.96.0.8"))
    assert files(tmp_path)["team.chat"] == ["10.96.0.8"]
    records.remove_service(service("chat", ""))
    assert files(tmp_path) == {}


def test_a_new_list_forgets_what_is_gone(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.replace_services([service("chat", "10.96.0.7"), service("pods", "None")])
    records.replace_endpoints([endpoints("pods", "10.0.0.2")])
    records.replace_endpoints([])
    assert set(files(tmp_path)) == {"team.chat"}
    records.replace_services([])
    assert files(tmp_path) == {}


def test_the_watcher_leaves_no_key_of_the_administrator_behind(tmp_path: Path) -> None:
    """`make down` ends it by SIGTERM, and promises that nothing is left."""
    command = [sys.executable, "-m", "pagefleet_local.node.dns", str(tmp_path / "kubeconfig"), str(tmp_path)]
    with asking(command, tmp_path) as (process, temporary):
        assert any("PRIVATE KEY" in path.read_text() for path in temporary.iterdir()), "the library writes it there"
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert list(temporary.iterdir()) == []
