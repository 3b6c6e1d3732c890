"""Protects what people apply: every InferenceService in examples/ and manifests/samples is one that the operator takes
without an error and the CRD's schema without an unknown field; every kustomization builds; and every workload that they
hold may run under Pod Security `restricted`, as the operator's own Deployments of engines do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.golden_manifests import child_of, spec_of

from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.prefill import prefill_deployment
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.schema import structure
from pagefleet_operator.domain.spec.schema.spec import SPEC

CHECKOUT = Path(__file__).resolve().parents[2]
MANIFESTS = CHECKOUT / "manifests"
KUBECTL = str(Path(sys.executable).parent / "kubectl")
SHIPPED = sorted([*(CHECKOUT / "examples").glob("*.yaml"), *(MANIFESTS / "samples").glob("*.yaml")])
DECLARED = {path: yaml.safe_load(path.read_text()) for path in sorted(MANIFESTS.rglob("kustomization.yaml"))}
OVERLAYS = [path.parent for path, one in DECLARED.items() if one["kind"] == "Kustomization"]
COMPONENTS = [path.parent for path, one in DECLARED.items() if one["kind"] == "Component"]
SERVICES = [
    (path.stem, document)
    for path in SHIPPED
    for document in yaml.safe_load_all(path.read_text())
    if document is not None
]


def test_the_scenarios_are_there() -> None:
    named = {path.name for path in SHIPPED if path.parent.name == "examples"}
    assert len(named) == 8
    text = (CHECKOUT / "examples/README.md").read_text()
    assert all(f"({name})" in text for name in named)


@pytest.mark.parametrize(
    ("file", "document"), SERVICES, ids=[f"{file}:{one['metadata']['name']}" for file, one in SERVICES]
)
def test_the_operator_takes_every_shipped_service(file: str, document: dict[str, Any]) -> None:
    assert (document["apiVersion"], document["kind"]) == ("pagefleet.io/v1alpha1", "InferenceService")
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
    assert document["metadata"]["namespace"], file
    assert structure.check(document["spec"], SPEC, "spec") == []
    parsed = parse(document["spec"])
    assert isinstance(parsed, Spec), parsed.message
    broken = {**document["spec"], "scalling": {}}
    assert not isinstance(parse(broken), Spec), "a misspelt field is refused"


def test_fallbacks_of_the_examples_answer_to_the_same_model() -> None:
    by_name = {(one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"] for _, one in SERVICES}
    fallbacks = [
        (spec, (namespace, spec["traffic"]["fallback"]["service"]))
        for (namespace, _), spec in by_name.items()
        if "fallback" in spec.get("traffic", {})
    ]
    assert fallbacks
    for spec, other in fallbacks:
        assert by_name[other]["model"]["servedName"] == spec["model"]["servedName"]


def built(folder: Path) -> list[dict[str, Any]]:
    """Return the output of `kubectl kustomize`."""
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def with_component(component: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the base with `component`, from a kustomization beside them (kustomize reads relative paths only)."""
    shown = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(Path("../" * len(folder.parts[1:])) / (MANIFESTS / "base").relative_to("/"))],
        "components": [str(Path("../" * len(folder.parts[1:])) / component.relative_to("/"))],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(shown))
    return built(folder)


def restricted(name: str, pod: dict[str, Any]) -> list[str]:
    """Return the fields of a pod's spec that Pod Security `restricted` (v1.25 and later) refuses."""
    faults = [f"{name}: {field}" for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field)]
    faults += [
        f"{name}: volume {volume['name']}"
        for volume in pod.get("volumes") or ()
        if not {
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "ephemeral",
            "persistentVolumeClaim",
            "projected",
            "secret",
        }
        & set(volume)
    ]
    whole = pod.get("securityContext") or {}
    for container in [*(pod.get("initContainers") or ()), *pod["containers"]]:
        own = container.get("securityContext") or {}
        requirements = {
            "runAsNonRoot": own.get("runAsNonRoot", whole.get("runAsNonRoot")) is True,
            "runAsUser 0": own.get("runAsUser", whole.get("runAsUser")) != 0,
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "privileged": not own.get("privileged"),
            "capabilities.drop": "ALL" in (own.get("capabilities") or {}).get("drop", ()),
            "capabilities.add": set((own.get("capabilities") or {}).get("add", ())) <= {"NET_BIND_SERVICE"},
            "seccompProfile": (own.get("seccompProfile") or whole.get("seccompProfile") or {}).get("type")
            in ("RuntimeDefault", "Localhost"),
            "hostPort": not any(port.get("hostPort") for port in container.get("ports") or ()),
        }
        faults += [f"{name}/{container['name']}: {field}" for field, holds in requirements.items() if not holds]
    return faults


def refused(documents: list[dict[str, Any]]) -> list[str]:
    pods = [
        (document["metadata"]["name"], document["spec"]["template"]["spec"])
        for document in documents
        if "template" in (document.get("spec") or {})
    ]
    return [fault for name, pod in pods for fault in restricted(name, pod)]


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: str(folder.relative_to(MANIFESTS)))
def test_every_kustomization_builds_and_its_workloads_are_restricted(folder: Path) -> None:
    documents = built(folder)
    assert documents
    assert refused(documents) == []


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda folder: folder.name)
def test_every_component_builds_on_the_base(component: Path, tmp_path: Path) -> None:
    documents = with_component(component, tmp_path)
    assert documents != built(MANIFESTS / "base"), "it changes something"
    assert refused(documents) == []


def test_the_monitoring_component_brings_everything(tmp_path: Path) -> None:
    kinds = [one["kind"] for one in with_component(MANIFESTS / "components/monitoring", tmp_path)]
    assert [kinds.count(kind) for kind in ("PodMonitor", "PrometheusRule", "ConfigMap")] == [6, 1, 4]


@pytest.mark.parametrize("name", ["minimal", "full", "gpu"])
def test_engine_pods_are_restricted(name: str) -> None:
    assert refused([deployment(child_of(spec_of(name)), 1)]) == []


def test_what_is_not_restricted_is_told() -> None:
    root = {"hostNetwork": True, "volumes": [{"name": "v", "hostPath": {"path": "/"}}], "containers": [{"name": "c"}]}
    assert restricted("d", root) == [
        "d: hostNetwork", "d: volume v", "d/c: runAsNonRoot", "d/c: allowPrivilegeEscalation", "d/c: capabilities.drop",
        "d/c: seccompProfile",
    ]  # fmt: skip


def test_monitors_and_scrape_jobs_find_the_same_pods() -> None:
    """By name, port and labels; ports are those that the pods name. Pods whose labels are believed are of the system's namespace."""
    documents = [*built(MANIFESTS / "base"), *built(MANIFESTS / "batches"), deployment(child_of(spec_of("minimal")), 1)]
    documents.append(prefill_deployment(child_of(spec_of("disaggregated")), 1))
    named = {
        template["metadata"]["labels"]["app.kubernetes.io/name"]: {
            port["name"] for container in template["spec"]["containers"] for port in container["ports"]
        }
        for template in (one["spec"]["template"] for one in documents if one["kind"] == "Deployment")
    }
    monitors = yaml.safe_load_all((MANIFESTS / "monitoring/operator/pod-monitors.yaml").read_text())
    asked = {}
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        rules = endpoint.get("relabelings", ())
        labels = {one["targetLabel"] for one in rules if "targetLabel" in one} | {"namespace", "pod"}
        name = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]
        without = [one["regex"] for one in rules if one.get("action") == "drop"]
        within, believed = monitor["spec"]["namespaceSelector"].get("matchNames"), endpoint.get("honorLabels", False)
        asked[monitor["metadata"]["name"]] = (name, endpoint["port"], labels, within, without, believed)
    jobs = {}
    for job in yaml.safe_load((MANIFESTS / "monitoring/scrape.yaml").read_text())["scrape_configs"]:
        name, port = (rule["regex"] for rule in job["relabel_configs"] if rule.get("action") == "keep")
        labels = {rule["target_label"] for rule in job["relabel_configs"] if "target_label" in rule}
        without = [rule["regex"] for rule in job["relabel_configs"] if rule.get("action") == "drop"]
        (discovered,) = job["kubernetes_sd_configs"]
        within, believed = discovered.get("namespaces", {}).get("names"), job.get("honor_labels", False)
        jobs[job["job_name"]] = (name, port, labels, within, without, believed)
    assert asked == jobs
    assert [(name, port) for name, port, *_ in asked.values() if port not in named[name]] == []
    assert {name for name, *_ in asked.values()} == set(named)
    assert {tuple(within or ()) for *_, within, _, believed in asked.values() if believed} == {("pagefleet-system",)}
