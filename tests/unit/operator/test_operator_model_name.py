"""Protects model names: one owner at a time, the oldest first, nobody steals or inherits a name, and a clash is a condition.

The condition is on the service that came later, with an Event, and it names no service of another namespace.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.virtual.cluster import Cluster

from pagefleet_contract.names import KIND
from pagefleet_gateway.cluster.objects import service_from
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.condition import with_transition_time
from pagefleet_operator.domain.status.model_names import NameReading, reading_of
from pagefleet_operator.domain.status.status import Phase
from pagefleet_operator.domain.traffic import model_name
from pagefleet_operator.kube.store import Store


class World:
    """Services in a store, and the operator's decisions about their names, written back as status."""

    def __init__(self) -> None:
        self.store, self.version = Store(), 0

    def put(self, namespace: str, name: str, created: int, served: str = "smol", **annotations: str) -> None:
        before = self.store.find(KIND, namespace, name) or {}
        self._write(
            {
                "metadata": {
                    "namespace": namespace,
                    "name": name,
                    "creationTimestamp": f"2026-01-{created:02}T00:00:00Z",
                    "annotations": {f"pagefleet.io/{key}-model-name": value for key, value in annotations.items()},
                },
                "spec": {"model": {"servedName": served}},
                "status": before.get("status", {}),
            }
        )

    def remove(self, namespace: str, name: str) -> None:
        self.store.remove(KIND, namespace, name)

    def decide(self, namespace: str, name: str) -> model_name.Claim:
        service = self.store.find(KIND, namespace, name)
        assert service is not None
        status = service["status"]
        stored = next(iter(status.get("conditions", ())), None)
        before = None
        if stored is not None:
            entry = (stored["type"], stored["status"], stored["reason"], stored["message"])
            before = with_transition_time(entry, None, 1, 0.0)
        served = service["spec"]["model"]["servedName"]
        others = [self.store.find(KIND, *key) for key in self.store.serving(served) if key != (namespace, name)]
        reading = reading_of(service, served, others)
        claim = model_name.decide((namespace, name), served, status.get("modelName", ""), before, reading)
        conditions = []
        if claim.condition is not None:
            kind, state, reason, message = claim.condition
            conditions = [{"type": kind, "status": state, "reason": reason, "message": message}]
        self._write({**service, "status": {"modelName": claim.granted, "conditions": conditions}})
        return claim

    def owners(self, served: str = "smol") -> list[str]:
        for _ in range(2):
            for namespace, name in self.store.names(KIND):
                self.decide(namespace, name)
        documents = [self.store.find(KIND, *key) or {} for key in self.store.names(KIND)]
        return [one["metadata"]["name"] for one in documents if one["status"].get("modelName") == served]

    def reason(self, namespace: str, name: str) -> str:
        claim = self.decide(namespace, name)
        return claim.condition[2] if claim.condition is not None else ""

    def _write(self, document: dict[str, Any]) -> None:
        self.version += 1
        document["metadata"] = {**document["metadata"], "resourceVersion": str(self.version)}
        self.store.upsert(KIND, document)


def test_the_oldest_owns_the_name_and_the_later_has_a_condition_without_foreign_names() -> None:
    world = World()
    world.put("team", "old", 1)
    world.put("evil", "young", 2)
    assert world.decide("evil", "young").granted == ""  # even when it is decided first
    assert world.owners() == ["old"]
    claim = world.decide("evil", "young")
    assert claim.condition is not None and claim.condition[:3] == ("ModelNameOwned", "False", "ModelNameTakenElsewhere")
    assert claim.condition[3].startswith("spec.model.servedName 'smol': ") and "team" not in claim.condition[3]
    world.put("team", "second", 3)
    claim = world.decide("team", "second")
    assert claim.condition is not None and claim.condition[2] == "ModelNameTaken" and "team/old" in claim.condition[3]


def test_an_older_service_that_takes_the_name_later_does_not_get_it() -> None:
    world = World()
    world.put("evil", "ancient", 1, served="other")
    world.put("team", "owner", 5)
    assert world.owners() == ["owner"]
    world.put("evil", "ancient", 1)
    assert world.reason("evil", "ancient") == "ModelNameTakenElsewhere" and world.owners() == ["owner"]
    assert world.owners("other") == []


@pytest.mark.parametrize(("namespace", "suffix"), [("evil", "Elsewhere"), ("team", "")])
def test_nobody_inherits_a_name_without_a_person(namespace: str, suffix: str) -> None:
    world = World()
    world.put("team", "owner", 1)
    world.put(namespace, "later", 2)
    assert world.owners() == ["owner"]
    world.remove("team", "owner")
    assert world.owners() == [] and world.reason(namespace, "later") == f"ModelNameReleased{suffix}"
    world.put(namespace, "later", 2, claim="another")
    assert world.owners() == []
    world.put(namespace, "later", 2, claim="smol")
    assert world.owners() == ["later"] and world.reason(namespace, "later") == ""


def test_a_claim_takes_no_name_that_somebody_has() -> None:
    world = World()
    world.put("team", "owner", 1)
    world.put("evil", "later", 2, claim="smol")
    assert world.owners() == ["owner"]


def test_the_same_service_made_again_gets_its_name_back() -> None:
    world = World()
    world.put("team", "owner", 1)
    world.put("evil", "later", 2)
    assert world.owners() == ["owner"]
    world.remove("team", "owner")
    assert world.owners() == []
    world.put("team", "owner", 9)
    assert world.owners() == ["owner"]


def test_a_service_that_takes_another_name_releases_the_old_one() -> None:
    world = World()
    world.put("team", "owner", 1)
    world.put("evil", "later", 2)
    assert world.owners() == ["owner"]
    world.put("team", "owner", 1, served="new")
    assert world.owners("new") == ["owner"] and world.owners() == []
    world.put("evil", "later", 2, served="own")
    assert world.owners("own") == ["later"]


def test_two_owners_of_a_restored_backup_become_one() -> None:
    world = World()
    for name, created in (("one", 1), ("two", 2)):
        world.put("team", name, created)
        service = world.store.find(KIND, "team", name)
        assert service is not None
        world._write({**service, "status": {"modelName": "smol"}})
    assert world.owners() == ["one"]


def test_services_without_a_served_name_claim_nothing() -> None:
    assert model_name.decide(("team", "chat"), "", "smol", None, NameReading()) == model_name.Claim("")


@pytest.mark.parametrize("promoted", [False, True])
def test_clients_keep_the_name_until_the_renamed_revision_is_promoted(promoted: bool) -> None:
    cluster = Cluster(1)
    cluster.spec["model"]["servedName"] = "gpt"
    stable = cluster.serving()
    cluster.tick()
    cluster.spec["rollout"].update(steps=[{"pause": {}}, {"weight": 10, "hold": "1s"}], guard={})
    cluster.spec = {**cluster.spec, "model": {**cluster.spec["model"], "servedName": "gpt-2"}}
    cluster.generation += 1
    cluster.until(lambda status: status.rollout.phase is Phase.PAUSED)
    assert names(cluster) == ("gpt", "gpt", True), "the engines that serve know no other name"
    cluster.act("promote" if promoted else "abort")
    cluster.until(lambda status: (status.stable != stable) if promoted else not status.canary)
    cluster.tick()
    name = "gpt-2" if promoted else "gpt"
    assert names(cluster) == (name, name, True)


def names(cluster: Cluster) -> tuple[str, str, bool]:
    """The name that was granted, and how a gateway reads it."""
    metadata = {"namespace": "ns", "name": "chat"}
    seen = service_from({"metadata": metadata, "spec": cluster.spec, "status": codec.dump(cluster.status)})
    return cluster.status.model_name, seen.served_name, seen.owns_name
