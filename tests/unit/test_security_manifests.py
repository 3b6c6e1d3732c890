"""Protects what pods may do and who may reach them: Pod Security `restricted` on every manifest that is shipped or
generated, no service-account token in engine pods, a NetworkPolicy for every component, Roles without wildcards, and an
InferenceService that cannot ask for more than that. Rows 26, 27, 29 of the reliability table."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.golden_manifests import SPECS, child_of, spec_of, violations

from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.leaderworkerset import leader_worker_set
from pagefleet_operator.domain.manifests.load_test_job import load_test_job
from pagefleet_operator.domain.manifests.prefill import prefill_deployment
from pagefleet_operator.domain.spec.parse import SpecErrors, parse

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("base", "overlays/local", "picker", "engines", "batches")
DECLARED = {
    "pagefleet-operator": {"http": 8080, "https": 8443},
    "pagefleet-gateway": {"http": 8080, "internal": 9002, "picker": 9003, "https": 8443},
    "pagefleet-batches": {"http": 8080, "internal": 9002},
}
Document = dict[str, Any]


def kustomized(folder: str | Path) -> list[Document]:
    command = [str(Path(sys.executable).parent / "kubectl"), "kustomize", str(ROOT / "manifests" / folder)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [document for document in yaml.safe_load_all(printed) if document]


def secured(folder: Path) -> list[Document]:
    """Return the objects of the base with every component added."""
    parts = sorted(path.name for path in (ROOT / "manifests/components").iterdir())
    up = "/".join([".."] * len(folder.parts[1:]))
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [f"{up}{ROOT}/manifests/base"],
                "components": [f"{up}{ROOT}/manifests/components/{name}" for name in parts],
            }
        )
    )
    command = [str(Path(sys.executable).parent / "kubectl"), "kustomize", str(folder)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return list(yaml.safe_load_all(printed))


def pods(documents: list[Document]) -> list[Document]:
    return [document for document in documents if document["kind"] in ("Deployment", "Job", "DaemonSet", "StatefulSet")]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_static_pod_passes_restricted(folder: str) -> None:
    for document in pods(kustomized(folder)):
        assert list(violations(document["spec"]["template"]["spec"])) == []


def test_every_component_leaves_the_pods_restricted(tmp_path: Path) -> None:
    documents = pods(secured(tmp_path))
    assert len(documents) == 3
    for document in documents:
        assert list(violations(document["spec"]["template"]["spec"])) == []
        assert document["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.parametrize("name", SPECS)
def test_generated_pods_pass_restricted_and_hold_no_token(name: str) -> None:
    child = child_of(spec_of(name))
    for manifest in (deployment(child, 1), load_test_job(child, "operator:1", {}, 60.0, 1.0)):
        pod = manifest["spec"]["template"]["spec"]
        assert list(violations(pod)) == []
        assert pod["automountServiceAccountToken"] is False
        named = child.spec.pod.service_account_name if manifest["kind"] == "Deployment" else ""
        assert pod.get("serviceAccountName", "") == named
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        projected = [source for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", [])]
        assert {kind for source in projected for kind in source} <= {"secret"}
        assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in pod["containers"])


def test_the_namespace_enforces_restricted() -> None:
    namespace = next(document for document in kustomized("base") if document["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_ports_are_the_declared_ones_and_each_is_named_by_a_policy(tmp_path: Path) -> None:
    documents = secured(tmp_path)
    policies = {document["metadata"]["name"]: document for document in documents if document["kind"] == "NetworkPolicy"}
    for document in pods(documents):
        name = document["metadata"]["name"]
        declared = {
            port["name"]: port["containerPort"]
            for port in document["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        assert declared == DECLARED[name]
        policy = policies[name]["spec"]
        assert policy["podSelector"]["matchLabels"] == document["spec"]["selector"]["matchLabels"]
        opened = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
        assert sorted(opened) == sorted(declared), name


def test_the_measuring_port_is_not_for_everybody(tmp_path: Path) -> None:
    """/windows and /metrics have numbers of every tenant's requests."""
    policies = [d for folder in ("picker", "base") for d in kustomized(folder) if d["kind"] == "NetworkPolicy"]
    rules = [rule for policy in policies for rule in policy["spec"]["ingress"]]
    internal = [rule for rule in rules if {"port": "internal"} in rule["ports"]]
    assert internal
    assert all(rule.get("from") for rule in internal)


@pytest.mark.parametrize("shipped", ["picker", "every component"])
def test_the_pickers_port_is_for_gateways_in_namespaces_of_an_administrator(shipped: str, tmp_path: Path) -> None:
    """Who reaches it can report outcomes, by which rollouts are judged. A pod's label alone is any tenant's to set."""
    documents = kustomized("picker") if shipped == "picker" else secured(tmp_path)
    policies = {document["metadata"]["name"]: document for document in documents if document["kind"] == "NetworkPolicy"}
    rules = [rule for rule in policies["pagefleet-gateway"]["spec"]["ingress"] if {"port": "picker"} in rule["ports"]]
    assert len(rules) == 1 and rules[0]["ports"] == [{"port": "picker"}]
    for peer in rules[0]["from"]:
        assert peer["namespaceSelector"] == {"matchLabels": {"pagefleet.io/gateways": "trusted"}}
        assert peer["podSelector"]["matchExpressions"]
    (container,) = next(d for d in documents if d["metadata"]["name"] == "pagefleet-gateway" and d["kind"] == "Deployment")[
        "spec"]["template"]["spec"]["containers"]  # fmt: skip
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment.get("PAGEFLEET_GATEWAY_PICKER_TLS", "on") == "on"


@pytest.mark.parametrize("generated", ["pagefleet-engine", "pagefleet-load-test"])
def test_generated_pods_have_a_policy_that_selects_them(generated: str) -> None:
    child = child_of(spec_of("minimal"))
    manifests = {
        "pagefleet-engine": deployment(child, 1),
        "pagefleet-load-test": load_test_job(child, "o", {}, 60.0, 1.0),
    }
    labels = manifests[generated]["spec"]["template"]["metadata"]["labels"]
    policy = next(d for d in kustomized("engines") if d["metadata"]["name"] == generated)["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    # Nothing is open to the world, in neither direction.
    assert all(rule.get("from") for rule in policy["ingress"])
    assert all(rule.get("to") and rule.get("ports") for rule in policy["egress"])


def test_the_load_test_may_reach_the_engines_and_they_it() -> None:
    policies = {document["metadata"]["name"]: document["spec"] for document in kustomized("engines")}
    engine, load = policies["pagefleet-engine"], policies["pagefleet-load-test"]
    callers = [value for entry in engine["ingress"][0]["from"] for value in _names(entry["podSelector"])]
    assert set(callers) == {"pagefleet-gateway", "pagefleet-operator", "pagefleet-load-test", "prometheus"}
    assert _names(load["egress"][0]["to"][0]["podSelector"]) == ["pagefleet-engine"]


def test_gateways_of_the_cluster_reach_the_engines_whose_pods_they_are_told() -> None:
    """With traffic.provider: GatewayAPI every request comes from such a gateway, straight to the pod. They are the picker's peers."""

    def gateways(documents: list[Document], policy: str, port: str) -> list[Document]:
        ingress = next(d for d in documents if (d["kind"], d["metadata"]["name"]) == ("NetworkPolicy", policy))["spec"][
            "ingress"
        ]
        peers = [peer for rule in ingress if {"port": port} in rule["ports"] for peer in rule["from"]]
        trusted = {"matchLabels": {"pagefleet.io/gateways": "trusted"}}
        return [peer for peer in peers if peer.get("namespaceSelector") == trusted]

    found = gateways(kustomized("engines"), "pagefleet-engine", "http")
    assert found == gateways(kustomized("picker"), "pagefleet-gateway", "picker")
    assert len(found) == 2


def test_namespaces_that_the_engines_policies_select_by_name_are_labelled_by_hand_on_1_20() -> None:
    """Kubernetes sets this label from 1.21 on. Without it no gateway reaches an engine, and no engine the cluster's DNS."""
    label = "kubernetes.io/metadata.name"
    selected = {
        peer["namespaceSelector"]["matchLabels"][label]
        for policy in kustomized("engines")
        for rule in (*policy["spec"]["ingress"], *policy["spec"]["egress"])
        for peer in (*rule.get("from", ()), *rule.get("to", ()))
        if label in peer.get("namespaceSelector", {}).get("matchLabels", {})
    }
    text = (ROOT / "docs/install.md").read_text()
    assert selected == {"pagefleet-system", "kube-system"}
    assert [name for name in selected if f"kubectl label namespace {name} {label}={name}" not in text] == []


def test_a_groups_pods_reach_each_other_and_nobody_else_reaches_them() -> None:
    """On every port, because collectives choose theirs. A pod of one node is not selected: it has no ranks to meet."""
    policy = next(d for d in kustomized("engines") if d["metadata"]["name"] == "pagefleet-engine-group")["spec"]
    group = leader_worker_set(child_of(spec_of("nodes")), 1)["spec"]["leaderWorkerTemplate"]
    names = {group[f"{role}Template"]["metadata"]["labels"]["app.kubernetes.io/name"] for role in ("leader", "worker")}
    expected = [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"},
                {"key": "app.kubernetes.io/name", "operator": "In", "values": sorted(names)}]  # fmt: skip
    assert policy["podSelector"] == {"matchExpressions": expected}
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchExpressions": expected}}]}]
    assert policy["egress"][0] == {"to": policy["ingress"][0]["from"]}
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_prefill_pods_and_decode_pods_reach_each_other_and_only_decode_pods_ask_them() -> None:
    """On every port, because the transfer of KV pages chooses its own. Others reach the page of metrics' port."""
    child = child_of(spec_of("disaggregated"))
    made = deployment(child, 1), prefill_deployment(child, 1)
    decode, prefill = (one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] for one in made)
    policies = {document["metadata"]["name"]: document["spec"] for document in kustomized("engines")}
    for own, other in ((prefill, decode), (decode, prefill)):
        policy = policies["pagefleet-engine-prefill" if own is prefill else "pagefleet-engine-decode"]
        peer = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": other}}}
        assert _names(policy["podSelector"]) == [own]
        assert policy["ingress"][0] == {"from": [peer]} and policy["egress"][0] == {"to": [peer]}
    (scraping,) = policies["pagefleet-engine-prefill"]["ingress"][1:]
    callers = {name for entry in scraping["from"] for name in _names(entry["podSelector"])}
    readers = {"pagefleet-gateway", "pagefleet-operator", "prometheus"}
    assert (callers, scraping["ports"]) == (readers, [{"port": "http"}])
    assert policies["pagefleet-engine-decode"]["ingress"][1:] == policies["pagefleet-engine-decode"]["egress"][1:] == []


def _names(selector: Document) -> list[str]:
    given = selector.get("matchLabels", {}).values()
    return [*given, *(value for entry in selector.get("matchExpressions", ()) for value in entry.get("values", ()))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_role_can_widen_itself(folder: str) -> None:
    for document in kustomized(folder):
        for rule in document.get("rules") or ():
            words = {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
            assert not words & {"*", "escalate", "bind", "impersonate", "secrets", "pods/exec", "pods/attach", "nodes"}
            assert not {"rbac.authorization.k8s.io", "admissionregistration.k8s.io"} & words


REPORTED = {"inferencepools", "inferenceobjectives", "httproutes"}  # kinds whose conditions others write


@pytest.mark.parametrize("folder", FOLDERS)
def test_nobody_writes_the_status_of_kinds_that_gateways_report_on_and_a_picker_writes_nothing(folder: str) -> None:
    rules = [rule for document in kustomized(folder) for rule in document.get("rules") or ()]
    assert not {f"{kind}/status" for kind in REPORTED} & {name for rule in rules for name in rule["resources"]}
    if folder == "picker":
        assert {verb for rule in rules for verb in rule["verbs"]} == {"list", "watch"}
        read = {(*rule["apiGroups"], name) for rule in rules for name in rule["resources"]}
        assert ("inference.networking.x-k8s.io", "inferenceobjectives") in read
        assert ("inference.networking.k8s.io", "inferencepools") in read


TAKEN = (
    ("hostPath", "/"), ("serviceAccountName", "admin"), ("serviceAccount", "admin"), ("privileged", True),
    ("hostNetwork", True), ("hostPID", True), ("hostIPC", True), ("securityContext", {"privileged": True}),
    ("volumes", [{"name": "x", "hostPath": {"path": "/"}}]), ("volumeMounts", [{"name": "x", "mountPath": "/x"}]),
    ("automountServiceAccountToken", True), ("runtimeClassName", "x"), ("initContainers", [{"name": "x"}]),
    ("containers", [{"name": "x"}]), ("command", ["sh"]), ("envFrom", [{"secretRef": {"name": "x"}}]),
    ("lifecycle", {"postStart": {"exec": {"command": ["sh"]}}}), ("hostPort", 80), ("podTemplate", {}), ("namespace", "kube-system"),
    ("imagePullSecrets", [{"name": "x"}]), ("nodeName", "master"), ("priorityClassName", "system-node-critical"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "value"), TAKEN, ids=[name for name, _ in TAKEN])
@pytest.mark.parametrize("place", ["", "model", "engine", "resources", "placement", "scaling", "rollout", "traffic"])
def test_a_service_cannot_ask_for_more_than_its_pods_get(place: str, name: str, value: object) -> None:
    spec = copy.deepcopy(spec_of("full"))
    part = spec.setdefault(place, {}) if place else spec
    part[name] = value
    refused = parse(spec)
    assert isinstance(refused, SpecErrors)
    assert any(error.field == ".".join(filter(None, ("spec", place, name))) for error in refused.errors)


FOREIGN: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("model", "source"), "pvc://../claim"),
    (("model", "source"), "http://evil/model"), (("model", "source"), "hostpath:///etc"),
    (("model", "chatTemplate", "configMapKeyRef", "name"), "team-b/templates"),
    (("model", "chatTemplate", "configMapKeyRef", "namespace"), "team-b"),
    (("engine", "apiKeySecretRef", "name"), "kube-system/admin"),
    (("engine", "apiKeySecretRef", "name"), "../admin"),
    (("engine", "apiKeySecretRef", "key"), "../../keys"),
    (("engine", "apiKeySecretRef", "namespace"), "kube-system"),
    (("engine", "env"), [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "namespace": "b"}}}]),
    (("engine", "env"), [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]),
    (("pod",), {"imagePullSecrets": [{"name": "s", "namespace": "b"}]}),
    (("pod",), {"automountServiceAccountToken": True}),
    (("pod",), {"securityContext": {"runAsUser": 0}}),
    (("pod",), {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}),
    (("engine", "env"), [{"name": "X", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]),
    (("traffic", "fallback", "service"), "team-b/chat"), (("traffic", "fallback", "namespace"), "team-b"),
    (("engine", "args"), ["--model=/etc/shadow"]), (("engine", "args"), ["--api-key-file", "/etc/shadow"]),
    (("engine", "args"), ["--host=127.0.0.1"]), (("engine", "args"), ["--port", "22"]),
)  # fmt: skip


@pytest.mark.parametrize(("path", "value"), FOREIGN, ids=lambda value: str(value)[:60])
def test_a_service_cannot_refer_to_what_is_not_its_own(path: tuple[str, ...], value: Any) -> None:
    spec = copy.deepcopy(spec_of("full"))
    part: Any = spec
    for name in path[:-1]:
        part = part.setdefault(name, {})
    part[path[-1]] = value
    refused = parse(spec)
    assert isinstance(refused, SpecErrors), "taken"
    assert any(path[0] in error.field for error in refused.errors)


def test_a_claim_is_one_of_the_own_namespace_and_mounted_read_only() -> None:
    spec = spec_of("minimal")
    spec["model"]["source"] = "pvc://team-b/claim/../../x"
    pod = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
    claims = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [{"claimName": "team-b", "readOnly": True}]
    assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount.get("readOnly")] == [
        "/models/team-b"
    ]
