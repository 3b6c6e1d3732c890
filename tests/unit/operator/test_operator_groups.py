"""Protects replicas of several nodes: who may have them, what is said where LeaderWorkerSets are not served, that scaling
and cost count groups, that conditions name a worker's fault and a wait for admission, that a name which Kueue has no room for is
refused by the API server and the operator alike, and that no request meets a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import celpy
import pytest
from support.golden_manifests import child_of, spec_of
from support.virtual.cluster import Cluster

from pagefleet_contract.names import ENGINE_POD_SELECTOR
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.cost.spending import billed
from pagefleet_operator.domain.manifests import retained
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.leaderworkerset import leader_worker_set
from pagefleet_operator.domain.runtimes.catalog import node_launch_of
from pagefleet_operator.domain.runtimes.node import Node
from pagefleet_operator.domain.scaling.deletion_cost import costs
from pagefleet_operator.domain.scaling.load import totals
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors, parse
from pagefleet_operator.domain.spec.rules.nodes import NAME_RULES, QUEUE, errors_of_name
from pagefleet_operator.domain.status.observation import Observation, PodFault, PodReading, RevisionReading
from pagefleet_operator.kube import group_members, leader_worker_sets, readings
from pagefleet_operator.kube.store import Store

CEL = celpy.Environment()
NOW = readings.seconds("2026-01-01T00:00:10Z")
GPUS = {"accelerator": {"name": "nvidia.com/gpu", "count": 8}}


def spec(engine: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": {"source": "pvc://w/m"}, "engine": engine, "resources": GPUS, **more}


def refused(given: dict[str, Any]) -> dict[str, str]:
    parsed = parse(given)
    return {e.field: e.message for e in parsed.errors} if isinstance(parsed, SpecErrors) else {}


QUEUED = {"labels": {QUEUE: "inference"}}
ROOT_RULE = CEL.program(CEL.compile(NAME_RULES[0].cel))


@pytest.mark.parametrize(("most", "longest"), [(1, 30), (10, 30), (11, 29), (100, 29), (101, 28)])
@pytest.mark.parametrize(
    ("given", "bounded"),
    [
        (spec({"nodes": 2}, pod=QUEUED), True),
        (spec({"nodes": 1}, pod=QUEUED), False),
        (spec({}, pod=QUEUED), False),
        (spec({"nodes": 2}, pod={"labels": {"team": "a"}}), False),
        (spec({"nodes": 2}, pod={"annotations": {QUEUE: "inference"}}), False),
        (spec({"nodes": 2}), False),
    ],
)
def test_a_name_that_kueue_has_no_room_for_is_refused(
    given: dict[str, Any], bounded: bool, most: int, longest: int
) -> None:
    parsed = parse({**given, "scaling": {"min": 1, "max": most}})
    assert isinstance(parsed, Spec)
    for length in (1, 20, 28, 29, 30, 31, 39):
        name, document = "n" * length, celpy.json_to_cel({"metadata": {"name": "n" * length}, "spec": parsed.raw})
        fits = not bounded or length <= longest
        assert (errors_of_name(name, parsed.raw) == []) == bool(ROOT_RULE.evaluate({"self": document})) == fits
        label = f"leaderworkerset-{name}-{'a' * 8}-{most - 1}-{'b' * 5}"  # what Kueue writes for the last replica
        assert not bounded or fits == (len(label) <= 63)


def test_a_condition_and_an_event_name_it_and_pods_stay_as_they_are() -> None:
    class Named(Cluster):
        def observe(self) -> Observation:
            return replace(super().observe(), name="n" * 31)

    made = Named(1)
    stable = made.serving()
    made.request(**spec({"nodes": 2}, pod=QUEUED))
    for _ in range(3):
        made.tick()
    degraded = made.condition("Degraded")
    assert degraded.reason == "InvalidSpec" and "metadata.name: must have at most 30 characters" in degraded.message
    assert made.weights() == {stable: 100} and len(made.status.revisions) == 1
    assert [entry.kind for entry in made.status.decisions].count("InvalidSpec") == 1


def test_a_replica_of_several_nodes_is_a_spec() -> None:
    assert refused(spec({"nodes": 2})) == {}


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        (spec({"nodes": 2}, resources={}), "spec.engine.nodes", "runtime pagefleet shares"),
        (spec({"nodes": 2, "runtime": "tgi"}), "spec.engine.nodes", "runtime tgi runs on one node"),
        (spec({"nodes": 17}), "spec.engine.nodes", "must be from 1 to 16"),
        (spec({"pipelineParallelSize": 2}), "spec.engine.pipelineParallelSize", "only the runtimes vllm and sglang"),
        (
            spec({"nodes": 2, "runtime": "vllm", "pipelineParallelSize": 3}),
            "spec.engine.pipelineParallelSize",
            "must divide a replica's accelerators",
        ),
        (
            spec({"nodes": 2}, model={"source": "pvc://w/m", "adapters": [{"name": "a", "source": "file:///a"}]}),
            "spec.model.adapters",
            "several",
        ),
        (spec({"nodes": 2, "args": ["--node-rank=1"]}), "spec.engine.args[0]", "written by the operator"),
    ],
)
def test_who_cannot_have_them_is_told_by_the_fields_name(given: dict[str, Any], field: str, message: str) -> None:
    assert message in refused(given)[field]


def test_cost_and_its_ceiling_are_of_all_nodes() -> None:
    parsed = parse(
        spec({"nodes": 2}, cost={"perAcceleratorHour": 2, "ceilingPerHour": 100}, scaling={"min": 1, "max": 9})
    )
    assert isinstance(parsed, Spec)
    assert (parsed.replica_cost, parsed.scaling.affordable) == (32.0, 3)


@pytest.mark.parametrize(
    ("runtime", "worker", "expected"),
    [
        ("pagefleet", True, {"--nnodes": "2", "--node-rank": "$(LWS_WORKER_INDEX)"}),
        ("vllm", False, {"--tensor-parallel-size": "8", "--pipeline-parallel-size": "2", "--nnodes": "2"}),
        ("vllm", True, {"--headless": "", "--master-addr": "$(LWS_LEADER_ADDRESS)"}),
        (
            "sglang",
            True,
            {
                "--tensor-parallel-size": "8",
                "--pipeline-parallel-size": "2",
                "--dist-init-addr": "$(LWS_LEADER_ADDRESS):29500",
            },
        ),
    ],
)
def test_each_runtime_is_told_in_its_own_words(runtime: str, worker: bool, expected: dict[str, str]) -> None:
    engine = {"nodes": 2, "runtime": runtime, **({} if runtime == "pagefleet" else {"pipelineParallelSize": 2})}
    flags = node_launch_of(revision_spec(spec(engine)), Node(2, worker)).flags
    values = {flag.partition("=")[0]: flag.partition("=")[2] for flag in flags}
    assert expected.items() <= values.items()
    assert ("--headless" in values) == (runtime == "vllm" and worker)


@pytest.mark.parametrize(("runtime", "waits"), [("pagefleet", False), ("vllm", True), ("custom", False)])
def test_workers_do_not_end_before_their_leaders_streams(runtime: str, waits: bool) -> None:
    """Ours wait by themselves, a custom engine's are its own affair."""
    engine = {"nodes": 2, "runtime": runtime, "args": ["--tensor-parallel-size=4"], "probes": {"readiness": "/"}}
    made = leader_worker_set(Child("ns", "chat", "uid", "abc", spec(engine)), 1)["spec"]["leaderWorkerTemplate"]
    worker = made["workerTemplate"]["spec"]
    (container,) = worker["containers"]
    assert ("lifecycle" in container) == waits
    if waits:
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        assert command == ["sleep", str(worker["terminationGracePeriodSeconds"] - 30)]
    assert container["args"][-1] == "--tensor-parallel-size=4", "what a person gives has the last word"


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_pod_of_a_group_keeps_trying_to_fetch_its_model(nodes: int) -> None:
    """LeaderWorkerSet answers the restart of a container, also of one that fetches, with a new group."""
    child = child_of(spec({"runtime": "vllm", "nodes": nodes}, model={"source": "hf://org/large"}))
    templates = retained.templates(leader_worker_set(child, 1) if nodes > 1 else deployment(child, 1))
    assert len(templates) == nodes
    for template in templates.values():
        [fetching] = template["spec"]["initContainers"]
        assert ("--keep-trying" in fetching["args"]) is (nodes > 1)


def test_a_custom_runtime_names_the_variables_itself() -> None:
    assert node_launch_of(revision_spec(spec({"nodes": 2, "runtime": "custom"})), Node(2, worker=True)).flags == ()


def cluster(*, served: bool) -> Cluster:
    made = Cluster(1)
    made.groups = served
    made.spec |= spec({"nodes": 2})
    return made


def test_without_the_kind_a_condition_says_what_to_install_and_nothing_is_made() -> None:
    made = cluster(served=False)
    for _ in range(5):
        made.tick()
    for kind in ("Ready", "Degraded"):
        assert made.condition(kind).reason == "MultiNodeUnavailable"
    assert "leaderworkerset.x-k8s.io/v1" in made.condition("Degraded").message
    assert made.plan is not None
    assert made.plan.children == ()
    made.groups = True
    made.until(lambda status: bool(status.traffic))
    assert made.condition("Degraded").status == "False"


def test_a_canary_of_several_nodes_without_the_kind_leaves_the_stable_alone() -> None:
    made = Cluster(1)
    stable = made.serving()
    made.request(**spec({"nodes": 2}))
    for _ in range(30):
        made.tick()
    assert made.weights() == {stable: 100}
    assert made.condition("Ready").status == "True"
    assert made.condition("Degraded").reason == "MultiNodeUnavailable"


def test_groups_are_replicas() -> None:
    made = cluster(served=True)
    made.spec["scaling"] = {"min": 3, "max": 3}
    made.until(lambda status: status.replicas == 3)
    assert made.plan is not None
    (workload, service, budget) = made.plan.children
    assert workload["kind"] == "LeaderWorkerSet"
    assert workload["spec"]["replicas"] == 3  # type: ignore[index]
    assert (service["kind"], budget["kind"]) == ("Service", "PodDisruptionBudget")


def test_no_selector_of_pods_that_serve_matches_a_worker() -> None:
    child = child_of(spec_of("nodes"))
    made = leader_worker_set(child, 1)["spec"]["leaderWorkerTemplate"]
    leader, worker = (made[f"{role}Template"]["metadata"]["labels"] for role in ("leader", "worker"))
    assert child.selector.items() <= leader.items()
    assert not child.selector.items() <= worker.items()
    keys = [part.partition("=")[0] for part in ENGINE_POD_SELECTOR.split(",")]
    assert set(keys) <= set(leader)
    assert not set(keys) <= set(worker)
    assert leader["app.kubernetes.io/name"] != worker["app.kubernetes.io/name"]


def test_which_group_goes_first_is_not_advised() -> None:
    pods = (PodReading("a-0", True, False, 0.0, 0.0), PodReading("a-1", True, False, 0.0, 0.0))
    assert set(costs({"a": RevisionReading("a", 2, pods)}, {"a": 1})) == {"a-0", "a-1"}
    assert costs({"a": RevisionReading("a", 2, pods, grouped=True)}, {"a": 1}) == {}


def pod(name: str, group: str, labels: dict[str, str], **status: Any) -> dict[str, Any]:
    own = {"leaderworkerset.sigs.k8s.io/group-index": group, "pagefleet.io/revision": "abc", **labels}
    metadata = {"name": name, "namespace": "ns", "labels": own, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "status": status}


def test_a_group_that_stays_incomplete_is_told_after_a_minute() -> None:
    """So that the autoscaler asks for no more, as with any pod that has no place."""
    leader = pod("a-0", "0", {"pagefleet.io/service": "a"})
    leader["metadata"]["annotations"] = {"leaderworkerset.sigs.k8s.io/size": "3"}
    worker = pod("a-0-1", "0", {"pagefleet.io/worker-of": "a"})
    reading = readings.pod(leader)
    assert group_members.with_fault_of_workers(reading, leader, [worker], reading.created + 59).fault is None
    late = group_members.with_fault_of_workers(reading, leader, [worker], reading.created + 61).fault
    assert late is not None
    assert (late.reason, late.field) == ("Unschedulable", "spec.resources")
    assert "2 of 3 pods" in late.message
    assert group_members.with_fault_of_workers(reading, leader, [worker, worker], reading.created + 61).fault is None


def test_a_worker_that_cannot_run_is_its_leaders_fault() -> None:
    leader = pod("a-0", "0", {"pagefleet.io/service": "a"})
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes have 8 nvidia.com/gpu"}
    workers = [pod(f"a-{n}-1", str(n), {"pagefleet.io/worker-of": "a"}) for n in (0, 1)]
    workers[0]["status"] = {"conditions": [unscheduled]}
    expected = PodFault("Unschedulable", "a-0-1: 0/3 nodes have 8 nvidia.com/gpu", "spec.resources")
    assert group_members.with_fault_of_workers(readings.pod(leader), leader, workers, NOW).fault == expected
    other = pod("a-1", "1", {"pagefleet.io/service": "a"})
    assert group_members.with_fault_of_workers(readings.pod(other), other, workers, NOW).fault is None
    store = Store()
    store.upsert("Pod", workers[0])
    assert store.owner(("Pod", "ns", "a-0-1")) == "a"


@pytest.mark.parametrize(
    ("spec", "status", "labels", "expected"),
    [
        ({}, {}, {}, False),
        ({"engine": {"nodes": 1}}, {}, {}, False),
        ({"engine": {"nodes": 2}}, {}, {}, True),
        ({"engine": {"nodes": "2"}}, {"revisions": [None, {"spec": []}]}, {}, False),
        ({}, {"revisions": [{"spec": {"engine": {"nodes": 4}}}]}, {}, True),
        ({}, {}, {"leaderworkerset.sigs.k8s.io/name": "a"}, True),
    ],
)
def test_leader_worker_sets_are_asked_for_only_where_there_may_be_any(
    spec: dict[str, Any], status: dict[str, Any], labels: dict[str, str], expected: bool
) -> None:
    assert leader_worker_sets.needed(spec, status, (), [{"metadata": {"labels": labels}}]) == expected


GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked by its gates"}
KUEUE = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}


def test_a_group_that_waits_for_its_admission_names_who_holds_it() -> None:
    leader = pod("a-0", "0", {"pagefleet.io/service": "a"}, conditions=[GATED]) | {"spec": KUEUE}
    found = readings.pod(leader).fault
    assert found is not None
    assert (found.reason, found.field) == ("SchedulingGated", "spec.pod.labels")
    assert found.message.startswith("waits for its admission: kueue.x-k8s.io/admission; `kubectl get workloads.kueue")
    other = leader | {"spec": {"schedulingGates": [{"name": "example.com/budget"}]}}
    expected = PodFault("SchedulingGated", "waits for its admission: example.com/budget")
    assert readings.pod(other).fault == expected
    waiting = replace(readings.pod(leader), fault=None)
    worker = pod("a-0-1", "0", {"pagefleet.io/worker-of": "a"}, conditions=[GATED]) | {"spec": KUEUE}
    told = group_members.with_fault_of_workers(waiting, leader, [worker], NOW).fault
    assert told is not None
    assert told.message.startswith("a-0-1: waits for its admission")


def test_pods_that_wait_for_their_admission_hold_no_accelerators_and_are_not_asked_for_again() -> None:
    serving = PodReading("a-0", True, False, NOW, NOW)
    fault = PodFault("SchedulingGated", "waits for its admission: kueue.x-k8s.io/admission")
    reading = RevisionReading("a", 2, (serving, PodReading("a-1", False, False, NOW, None, fault=fault)))
    counted = totals(reading, NOW)
    assert (counted.starting, counted.stuck, counted.refused) == (1, 1, fault.message)
    assert billed(reading) == 1
