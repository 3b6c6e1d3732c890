"""Protects names: a service whose objects the API server or a controller would refuse by their names is refused by a
message of its own, and one that serves already is not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import celpy
import pytest
from support.virtual.cluster import Cluster

from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision import revision_hash, snapshot
from pagefleet_operator.domain.manifests.leaderworkerset import leader_worker_set
from pagefleet_operator.domain.manifests.service import service
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.rules.nodes import NAME_RULES, errors_of_name
from pagefleet_operator.domain.status.observation import Observation

MODEL: dict[str, Any] = {"model": {"source": "pvc://w/m"}}
NODES = {"engine": {"nodes": 2}, "resources": {"accelerator": {"name": "nvidia.com/gpu", "count": 8}}}
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # of a Service, since Kubernetes 1.34 with a digit first
DNS_1035_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")  # of a LeaderWorkerSet, by its webhook
CEL = celpy.Environment()
PROGRAMS = [CEL.program(CEL.compile(rule.cel)) for rule in NAME_RULES]


def parsed_of(most: int, **parts: Any) -> Spec:
    parsed = parse({**MODEL, **parts, "scaling": {"min": 1, "max": most}})
    assert isinstance(parsed, Spec)
    return parsed


def child(name: str, parsed: Spec) -> Child:
    return Child("team", name, "uid", revision_hash(parsed.raw), snapshot(parsed.raw))


def accepted(name: str, parsed: Spec) -> bool:
    """Whether the operator accepts the name. The API server reads the same rules."""
    document = celpy.json_to_cel({"metadata": {"name": name}, "spec": parsed.raw})
    held = all(bool(program.evaluate({"self": document})) for program in PROGRAMS)
    assert (errors_of_name(name, parsed.raw) == []) is held
    return held


@pytest.mark.parametrize("name", ["chat", "7b-chat", "chat.v2", "n" * 54, "n" * 55, "n" * 63, "n" * 253])
def test_a_service_is_accepted_where_its_services_name_is_a_dns_label(name: str) -> None:
    parsed = parsed_of(1)
    made = service(child(name, parsed))["metadata"]["name"]
    assert accepted(name, parsed) is (DNS_LABEL.fullmatch(made) is not None)


@pytest.mark.parametrize("most", [1, 10, 11, 100, 101])
@pytest.mark.parametrize("name", ["chat", "7b-chat", *("n" * length for length in range(38, 44))])
def test_several_nodes_are_accepted_where_the_pods_of_a_group_can_be_made(name: str, most: int) -> None:
    """The workers' StatefulSet is named by the group's index; a label of its pods is that name and 10 characters."""
    parsed = parsed_of(most, **NODES)
    group = leader_worker_set(child(name, parsed), most)["metadata"]["name"]
    label = f"{group}-{most - 1}-{'0' * 10}"
    assert accepted(name, parsed) is (DNS_1035_LABEL.fullmatch(group) is not None and len(label) <= 63)


@pytest.mark.parametrize("name", ["chat.v2", "n" * 55])
def test_a_condition_names_it_and_a_service_that_serves_is_left_alone(name: str) -> None:
    class Named(Cluster):
        called = name

        def observe(self) -> Observation:
            return replace(super().observe(), name=self.called)

    made = Named(1)
    made.tick()
    degraded = made.condition("Degraded")
    assert degraded.reason == "InvalidSpec" and "metadata.name: must have at most 54" in degraded.message
    made.called = "chat"
    made.serving()
    made.called = name
    made.tick()
    assert made.condition("Degraded").status == "False"
