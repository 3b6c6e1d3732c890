"""Protects prefill and decode in pods of their own: what the spec refuses, which labels no selector of a service's pods matches, that
both kinds of pods of a revision start from one template, that prefill pods are no replicas for the scaler but cost as much, that a
canary is judged only with its prefill pods, that conditions name their faults, and that status, page and metrics count them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of
from support.virtual.cluster import Cluster

from pagefleet_contract.disaggregation import SIDECAR
from pagefleet_contract.engine_metrics import engine_from
from pagefleet_contract.names import ENGINE_ANNOTATION, ENGINE_POD_SELECTOR, PREFILL_LABEL, REVISION_POD_SELECTOR
from pagefleet_gateway.cluster.objects import pod_from
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.cost.spending import billed
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.disruption_budget import disruption_budget
from pagefleet_operator.domain.manifests.prefill import prefill_deployment, prefill_disruption_budget
from pagefleet_operator.domain.manifests.retained import templates
from pagefleet_operator.domain.manifests.service import service
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors, parse
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.observation import Observation, PodFault, PodReading, RevisionReading
from pagefleet_operator.domain.status.status import Phase
from pagefleet_operator.kube import readings
from pagefleet_operator.kube.store import Store
from pagefleet_operator.observe import _pods, _revisions
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.snapshot import taken
from pagefleet_operator.web.view import page

GPU = {"accelerator": {"name": "nvidia.com/gpu"}}
SPLIT = {"runtime": "vllm", "disaggregation": {"prefill": {"replicas": 2}}}


def spec(**more: Any) -> dict[str, Any]:
    return {"model": {"source": "pvc://w/m"}, "engine": SPLIT, "resources": GPU, **more}


def refused(given: dict[str, Any]) -> dict[str, str]:
    parsed = parse(given)
    return {e.field: e.message for e in parsed.errors} if isinstance(parsed, SpecErrors) else {}


def test_a_disaggregated_service_is_a_spec() -> None:
    assert refused(spec()) == {}
    assert revision_spec(spec()).prefill_replicas == 2
    assert revision_spec(spec(engine={"runtime": "vllm"})).prefill_replicas == 0


@pytest.mark.parametrize(
    ("engine", "field", "words"),
    [
        ({"disaggregation": {}}, "spec.engine.disaggregation.prefill", "required"),
        ({"disaggregation": {"prefill": {"replicas": 0}}}, "spec.engine.disaggregation.prefill.replicas", "from 1 to"),
        ({"disaggregation": {"prefill": {"replicas": 1, "timeout": "1d"}}}, "spec.engine.disaggregation.prefill.timeout", "must"),
        ({"args": ['--kv-transfer-config={"kv_connector":"x"}']}, "spec.engine.args[0]", "spec.engine.disaggregation too"),
        ({"runtime": "pagefleet"}, "spec.engine.disaggregation", "not supported by runtime"),
        (
            {"runtime": "sglang", "disaggregation": {"prefill": {"replicas": 1}, "minPromptTokens": 64}},
            "spec.engine.disaggregation.minPromptTokens",
            "not supported by runtime sglang",
        ),
        (
            {"runtime": "sglang", "args": ["--disaggregation-mode=prefill"]},
            "spec.engine.args[0]",
            "spec.engine.disaggregation",
        ),
    ],
)  # fmt: skip
def test_what_it_refuses_is_told_by_the_fields_name(engine: dict[str, Any], field: str, words: str) -> None:
    assert words in refused(spec(engine={**SPLIT, **engine}))[field]


def test_an_own_transfer_stays_possible_without_it() -> None:
    engine = {"runtime": "vllm", "args": ['--kv-transfer-config={"kv_connector":"x"}']}
    assert refused(spec(engine=engine)) == {}


def test_the_ceiling_of_costs_counts_prefill_pods() -> None:
    cost = {"perAcceleratorHour": 2, "ceilingPerHour": 10}
    parsed = parse(spec(cost=cost, scaling={"min": 1, "max": 9}))
    assert isinstance(parsed, Spec) and parsed.scaling.affordable == 3
    assert "and the prefill pods" in refused(spec(cost={**cost, "ceilingPerHour": 5}))["spec.cost.ceilingPerHour"]
    pod = PodReading("p", True, False, 0.0, 0.0)
    assert billed(RevisionReading("a", 1, (pod,), prefill=(pod, pod))) == 3


def labels_of(manifest: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = manifest["spec"]["template"]["metadata"]["labels"]
    return labels


def test_no_selector_of_pods_that_serve_matches_a_prefill_pod() -> None:
    child = child_of(spec_of("disaggregated"))
    decode, prefill = labels_of(deployment(child, 1)), labels_of(prefill_deployment(child, 1))
    serving = [service(child)["spec"]["selector"], disruption_budget(child)["spec"]["selector"]["matchLabels"]]
    for selector in (child.selector, *serving):
        assert selector.items() <= decode.items() and not selector.items() <= prefill.items()
    own = prefill_deployment(child, 1)["spec"]["selector"]["matchLabels"]
    assert prefill_disruption_budget(child)["spec"]["selector"]["matchLabels"] == own
    assert own.items() <= prefill.items() and not own.items() <= decode.items()

    def matches(selector: str, labels: dict[str, str]) -> bool:
        return {part.partition("=")[0] for part in selector.split(",")} <= set(labels)

    assert matches(ENGINE_POD_SELECTOR, decode) and not matches(ENGINE_POD_SELECTOR, prefill)
    assert matches(REVISION_POD_SELECTOR, decode) and matches(REVISION_POD_SELECTOR, prefill)


def test_the_gateway_reads_both_kinds_of_pods() -> None:
    child = child_of(spec_of("disaggregated"))
    status = {"podIP": "10.0.0.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    decode, prefill = (
        pod_from({**made["spec"]["template"], "status": status})
        for made in (deployment(child, 1), prefill_deployment(child, 1))
    )
    assert decode is not None and prefill is not None
    assert (decode.service, decode.revision, decode.address) == (prefill.service, prefill.revision, prefill.address)
    assert (decode.prefills, prefill.prefills, prefill.engine.prefill_from) == (False, True, 1024)
    assert prefill.address.endswith(":8000") and prefill.engine.scraped


def containers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manifest["spec"]["template"]["spec"]["containers"]
    return found


def test_both_kinds_of_pods_run_one_engine_from_one_template() -> None:
    """They check each other's version, so templates of an earlier operator hold for both."""
    child = child_of(spec_of("disaggregated"))
    old = deployment(child, 1)
    containers(old)[0]["image"] = "docker.io/vllm/vllm-openai:v0.31.0"
    decode, sidecar = containers(old)
    (engine,) = containers(prefill_deployment(child, 1, templates(old)))
    assert engine["image"] == decode["image"] and sidecar["name"] == SIDECAR
    differ = {name for name in engine if engine[name] != decode[name]}
    assert differ == {"args", "ports", "startupProbe", "readinessProbe", "livenessProbe"}
    own = [one for one in engine["args"] if one not in decode["args"]]
    assert own[0] == "--port=8000" and '"kv_role":"kv_producer"' in own[1] and len(own) == 2
    assert '"kv_role":"kv_consumer"' in str(decode["args"])
    described = prefill_deployment(child, 1, templates(old))["spec"]["template"]["metadata"]["annotations"]
    assert replace(engine_from(described[ENGINE_ANNOTATION]), prefill_from=0) == engine_from(
        old["spec"]["template"]["metadata"]["annotations"][ENGINE_ANNOTATION]
    )


class SplitCluster(Cluster):
    """A cluster whose prefill pods become ready at once, but those of the revisions in `unready`, which have this fault."""

    def __init__(self) -> None:
        super().__init__(1)
        self.spec |= spec()
        self.unready: set[str] = set()
        self.holds_back = False  # new revisions have no ready prefill pods
        self.fault: PodFault | None = None

    def observe(self) -> Observation:
        observed = super().observe()
        known = {name: self.prefill_of(name) for name in observed.revisions}
        revisions = {name: replace(one, prefill=known[name]) for name, one in observed.revisions.items()}
        return replace(observed, revisions=revisions)

    def planned(self, revision: str) -> int:
        """The replicas of the revision's prefill Deployment in the last plan."""
        for child in self.plan.children if self.plan else ():
            labels: Any = child["metadata"]["labels"]  # type: ignore[index]
            if child["kind"] == "Deployment" and PREFILL_LABEL in labels and revision in str(child["metadata"]["name"]):  # type: ignore[index]
                return int(child["spec"]["replicas"])  # type: ignore[index]
        return 0

    def prefill_of(self, revision: str) -> tuple[PodReading, ...]:
        ready = revision not in self.unready and not (self.holds_back and revision != self.status.stable)
        fault = None if ready else self.fault
        since = self.now if ready else None
        return tuple(
            PodReading(f"{revision}-p{i}", ready, False, self.now, since, fault) for i in range(self.planned(revision))
        )


def test_prefill_pods_are_no_replicas() -> None:
    made = SplitCluster()
    made.spec["scaling"] = {"min": 3, "max": 3}
    made.until(lambda status: status.replicas == 3)
    assert made.planned(made.status.stable) == 2
    assert made.plan is not None
    kinds = [
        (child["kind"], child["metadata"]["name"].partition("-")[2].partition("-")[2]) for child in made.plan.children
    ]  # type: ignore[index]
    assert kinds == [
        ("Deployment", ""), ("Service", ""), ("PodDisruptionBudget", ""),
        ("Deployment", "prefill"), ("PodDisruptionBudget", "prefill"),
    ]  # fmt: skip


def test_a_revision_without_replicas_has_no_prefill_pods() -> None:
    made = SplitCluster()
    stable = made.serving()
    assert made.planned(stable) == 2
    made.request(scaling={"min": 0, "max": 1, "mode": "external"})
    made.until(lambda status: made.condition("Scaling").reason == "Idle")
    assert (made.replicas[stable], made.planned(stable)) == (0, 0)


def test_missing_prefill_pods_and_their_fault_are_told_and_stop_no_traffic() -> None:
    made = SplitCluster()
    stable = made.serving()
    made.unready, made.fault = {stable}, PodFault("Unschedulable", "no node has a GPU left", "spec.resources")
    for _ in range(3):
        made.tick()
    assert made.weights() == {stable: 100} and made.condition("Ready").status == "True"
    assert f"{stable}: 0 of 2 prefill pods ready" in made.condition("Scaling").message
    degraded = made.condition("Degraded")
    assert degraded.reason == "Unschedulable" and "prefill pods: spec.resources: no node has a GPU" in degraded.message


def test_the_status_the_page_and_the_metrics_show_ready_and_wanted_prefill_pods() -> None:
    made, metrics = SplitCluster(), Metrics()
    made.spec |= {"cost": {"perAcceleratorHour": 2}}
    stable = made.serving()
    made.tick()
    document: dict[str, Any] = {"metadata": {"namespace": "ns", "name": "chat"}, "spec": made.spec}
    document["status"] = codec.dump(made.status)
    assert [one["prefill"] for one in document["status"]["revisions"]] == [{"ready": 2, "desired": 2}]
    observed = made.observe()
    shown = page(document, taken(None, observed, made.status, made.now), made.now)
    assert [one["prefill"] for one in shown["revisions"]] == [{"ready": 2, "desired": 2}]
    assert [pod["prefill"] for pod in shown["pods"]] == [False, True, True] and shown["ready"] == 1
    assert made.plan is not None
    metrics.planned("ns", "chat", made.plan)
    metrics.load.planned(observed, made.plan)
    metrics.llm_cost.planned(observed, made.plan)
    of = f'{{namespace="ns",revision="{stable}",service="chat",state="ready"}}'
    text = metrics.text().decode()
    assert f"pagefleet_prefill_replicas{of} 2.0" in text and f"pagefleet_replicas{of} 1.0" in text
    costs = [
        float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith(("pagefleet_cost_per_hour{", "llm_total_cost{"))
    ]
    assert costs == [6.0, 6.0]
    metrics.forget("ns", "chat")
    assert "pagefleet_prefill_replicas{" not in metrics.text().decode()


def test_a_revision_without_prefill_pods_has_no_record_of_any() -> None:
    made = SplitCluster()
    made.spec["engine"] = {"runtime": "vllm"}
    made.serving()
    assert [one.prefill for one in made.status.revisions] == [None]


def test_a_canary_is_judged_only_with_its_prefill_pods() -> None:
    made = SplitCluster()
    stable = made.serving()
    made.holds_back = True
    made.edit(9)
    made.spec["engine"]["args"] = ["--enforce-eager"]
    made.until(lambda status: bool(status.canary) and made.planned(status.canary) == 2)
    for _ in range(20):
        made.tick()
    assert (made.status.rollout.phase, made.weights()) == (Phase.STARTING, {stable: 100})
    made.holds_back = False
    made.until(lambda status: made.weight() > 0)


def test_a_canary_whose_prefill_pods_never_start_is_given_up() -> None:
    made = SplitCluster()
    stable = made.serving()
    made.holds_back, made.fault = True, PodFault("Unschedulable", "no node has a GPU left", "spec.resources")
    made.edit(9)
    made.spec["engine"]["args"] = ["--enforce-eager"]
    made.until(lambda status: bool(status.rejected), ticks=2000)
    assert made.weights() == {stable: 100}
    assert made.status.rejected[-1].reason == "StartFailed" and "no node has a GPU" in made.status.rejected[-1].message


def item(kind: str, manifest: dict[str, Any], name: str) -> dict[str, Any]:
    if kind == "Deployment":
        return {**manifest, "kind": kind, "metadata": {**manifest["metadata"], "uid": name}}
    metadata = {**manifest["spec"]["template"]["metadata"], "name": name, "namespace": "team-a"}
    return {"metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {}}


def test_what_is_read_of_the_cluster_keeps_the_two_kinds_apart() -> None:
    child = child_of(spec_of("disaggregated"))
    made = deployment(child, 3), prefill_deployment(child, 2)
    pods = _pods([item("Pod", made[0], "d"), item("Pod", made[1], "p")])
    assert [[one["metadata"]["name"] for one in group] for group in (pods.engines, pods.prefill)] == [["d"], ["p"]]
    workloads = [item("Deployment", one, "u") for one in made]
    (reading,) = _revisions(workloads, pods, [readings.pod(one) for one in pods.computing], []).values()
    assert reading.replicas == 3
    assert [[pod.name for pod in group] for group in (reading.pods, reading.prefill)] == [["d"], ["p"]]
    store = Store()
    store.upsert("Pod", item("Pod", made[1], "p"))
    assert [one["metadata"]["name"] for one in store.children("Pod", "team-a", "chat")] == ["p"]


def test_a_sidecar_that_cannot_be_pulled_is_no_fault_of_the_engines_image() -> None:
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    (one, other) = (readings.fault({"containerStatuses": [{"name": name, **waiting}]}) for name in ("engine", SIDECAR))
    assert one is not None and other is not None
    assert (one.field, other.field) == ("spec.engine.image", "")
    assert other.message == f"container {SIDECAR}: not found"
