"""Protects the Helm chart, with the real helm: it is what its generator writes; its defaults are the kustomize base, its
switches the components, its files of values the overlays; every value arrives where it should and a wrong one is refused
by name; and every pod stays restricted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import artifact_hub
from support.golden_manifests import violations
from support.helm_chart import CHART, container, kustomization, named, rendered, run, template

from pagefleet_local.assets import helm
from pagefleet_local.assets.debian import AssetError
from pagefleet_local.chart import __main__ as command
from pagefleet_local.chart import source
from pagefleet_local.chart.source import MANIFESTS, SourceError, kustomized, operations, patched
from pagefleet_local.chart.templates import COMPONENTS
from pagefleet_local.chart.text import Expression, Given, When, document, scalar
from pagefleet_local.chart.values import tree, values
from pagefleet_local.chart.whole import chart

# Every component of manifests/ -> the components it needs, and the values that make the same.
SWITCHES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "high-availability": (
        (),
        ("gateway.replicas=2", "gateway.podDisruptionBudget=true", "operator.podDisruptionBudget=true"),
    ),
    "gateway-tls": ((), ("gateway.tls.enabled=true",)),
    "gateway-tls-only": (("gateway-tls",), ("gateway.tls.enabled=true", "gateway.tls.plaintext=false")),
    "gateway-api-keys": ((), ("gateway.apiKeys.enabled=true",)),
    "picker": ((), ("gateway.picker.enabled=true",)),
    "picker-mtls": (("picker",), ("gateway.picker.enabled=true", "gateway.picker.mutualTLS=true")),
    "batches": ((), ("batches.enabled=true",)),
    "monitoring": ((), ("monitoring.enabled=true",)),
}
# Values that change nothing of the defaults are in no other test: each one here, with where it must arrive.
POD = ("spec", "template", "spec")
EXERCISED: dict[str, Any] = {
    "image.repository": "registry.example.com/p", "image.tag": "9", "image.pullPolicy": "Always",
    "image.pullSecrets": ["pull-secret"],
    "operator.replicas": 3, "operator.image": "o@sha256:1", "operator.resources": {"limits": {"memory": "7Gi"}},
    "operator.env": [{"name": "FROM_OPERATOR_ENV", "value": "1"}], "operator.podAnnotations": {"o-note": "1"},
    "operator.nodeSelector": {"o-pool": "a"}, "operator.tolerations": [{"key": "o-taint", "operator": "Exists"}],
    "operator.affinity": {"nodeAffinity": {}}, "operator.priorityClassName": "o-priority",
    "operator.podDisruptionBudget": True, "operator.namespaces": ["team-a", "team-b"], "operator.logLevel": "DEBUG",
    "operator.prometheus.url": "http://prometheus:9090", "operator.prometheus.tokenSecretName": "prometheus-secret",
    "operator.alertTokenSecretName": "alert-secret", "operator.statusPageTokenSecretName": "page-secret",
    "operator.tlsSecretName": "operator-tls-secret",
    "gateway.replicas": 4, "gateway.image": "g@sha256:2", "gateway.resources": {"limits": {"memory": "9Gi"}},
    "gateway.env": [{"name": "FROM_GATEWAY_ENV", "value": "1"}], "gateway.podAnnotations": {"g-note": "1"},
    "gateway.nodeSelector": {"g-pool": "a"}, "gateway.tolerations": [{"key": "g-taint", "operator": "Exists"}],
    "gateway.affinity": {"podAntiAffinity": {}}, "gateway.priorityClassName": "g-priority",
    "gateway.podDisruptionBudget": True, "gateway.workers": 3, "gateway.drainSeconds": 7200, "gateway.service.type": "NodePort",
    "gateway.service.annotations": {"g-service": "1"}, "gateway.tls.enabled": True,
    "gateway.tls.secretName": "gateway-tls-secret", "gateway.tls.plaintext": False, "gateway.apiKeys.enabled": True,
    "gateway.apiKeys.secretName": "keys-secret", "gateway.picker.enabled": True,
    "gateway.picker.tlsSecretName": "picker-secret", "gateway.picker.mutualTLS": True,
    "gateway.picker.from": [{"namespaceSelector": {"matchLabels": {"g-gateways": "mine"}}}], "networkPolicies.enabled": False,
    "batches.enabled": True, "batches.keySecretName": "own-key-secret", "batches.storage.size": "77Gi",
    "batches.storage.className": "slow-disks", "batches.resources": {"limits": {"memory": "5Gi"}},
    "batches.env": [{"name": "PAGEFLEET_BATCHES_GATEWAY_URL", "value": "https://from.batches.env"}], "batches.podAnnotations": {"b-note": "1"},
    "batches.nodeSelector": {"b-pool": "a"}, "batches.tolerations": [{"key": "b-taint", "operator": "Exists"}],
    "batches.affinity": {"podAffinity": {}}, "batches.priorityClassName": "b-priority",
    "monitoring.enabled": True, "monitoring.dashboards": False, "monitoring.labels": {"release": "mine"},
}  # fmt: skip
# What a value needs beside it to have an effect.
BESIDE = {
    "operator.prometheus.tokenSecretName": {"operator.prometheus.url": "http://prometheus:9090"},
    "gateway.tls.secretName": {"gateway.tls.enabled": True},
    "gateway.tls.plaintext": {"gateway.tls.enabled": True},
    "gateway.apiKeys.secretName": {"gateway.apiKeys.enabled": True},
    "gateway.picker.tlsSecretName": {"gateway.picker.enabled": True},
    "gateway.picker.mutualTLS": {"gateway.picker.enabled": True},
    "gateway.picker.from": {"gateway.picker.enabled": True},
    **{
        path: {"batches.enabled": True}
        for path in EXERCISED
        if path.startswith("batches.") and path != "batches.enabled"
    },
    "monitoring.dashboards": {"monitoring.enabled": True},
    "monitoring.labels": {"monitoring.enabled": True},
}


def flags(given: dict[str, Any]) -> list[str]:
    return [word for path, value in given.items() for word in ("--set-json", f"{path}={json.dumps(value)}")]


def test_the_chart_is_what_the_generator_writes() -> None:
    assert command.different(CHART, chart()) == []


def test_a_chart_that_is_not_is_told(tmp_path: Path) -> None:
    (tmp_path / "Chart.yaml").write_text("x")
    (tmp_path / "old.yaml").write_text("y")
    assert command.different(tmp_path, {"Chart.yaml": "z", "new.yaml": ""}) == ["Chart.yaml", "new.yaml", "old.yaml"]


def test_lint() -> None:
    run("lint", "--strict", str(CHART))


def test_artifact_hub_gets_what_its_annotations_must_hold() -> None:
    """Each list is YAML in a string: https://artifacthub.io/docs/topics/annotations/helm/."""
    found = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    known = {name.removeprefix("artifacthub.io/"): value for name, value in found.items()}
    assert artifact_hub.faults("helm", found) == []
    (crd,) = yaml.safe_load(known["crds"])
    (example,) = yaml.safe_load(known["crdsExamples"])
    assert (crd["kind"], crd["name"], crd["version"]) == (
        "InferenceService", "inferenceservices.pagefleet.io", example["apiVersion"].partition("/")[2],
    )  # fmt: skip
    used = {
        one["spec"]["template"]["spec"]["containers"][0]["image"] for one in rendered() if one["kind"] == "Deployment"
    }
    assert {one["image"] for one in yaml.safe_load(known["images"])} == used
    assert known["category"] == "ai-machine-learning"


def test_the_defaults_are_the_base() -> None:
    assert named(rendered()) == named(kustomized(MANIFESTS / "base"))


@pytest.mark.parametrize("name", sorted(path.name for path in (MANIFESTS / "components").iterdir()))
def test_a_switch_is_its_component(name: str, tmp_path: Path) -> None:
    needed, given = SWITCHES[name]
    expected = named(kustomized(kustomization(tmp_path, *needed, name)))
    assert expected != named(kustomized(MANIFESTS / "base"))
    assert named(rendered(*(word for value in given for word in ("--set", value)))) == expected


def test_all_switches_are_all_components(tmp_path: Path) -> None:
    given = {value for _, some in SWITCHES.values() for value in some}
    # The batches server cannot reach a gateway without plaintext by its default address.
    documents, url = kustomized(kustomization(tmp_path, *[*COMPONENTS, "monitoring"])), EXERCISED["batches.env"]
    (server,) = [
        one for one in documents if (one["kind"], one["metadata"]["name"]) == ("Deployment", "pagefleet-batches")
    ]
    server["spec"]["template"]["spec"]["containers"][0]["env"] += url
    expected = named(documents)
    flagged = [*(word for value in sorted(given) for word in ("--set", value)), *flags({"batches.env": url})]
    assert named(rendered(*flagged)) == expected


@pytest.mark.parametrize("name", ["production", "air-gapped"])
def test_a_file_of_values_is_its_overlay(name: str) -> None:
    expected = named(kustomized(MANIFESTS / "overlays" / name))
    assert named(rendered("--values", str(CHART / f"{name}.yaml"))) == expected


def test_every_value_is_exercised() -> None:
    assert set(EXERCISED) == {value.path for value in values({"operator": {}, "gateway": {}, "batches": {}})}
    assert (
        tree(values({"operator": {}, "gateway": {}, "batches": {}})).keys()
        == yaml.safe_load((CHART / "values.yaml").read_text()).keys()
    )


@pytest.mark.parametrize("path", EXERCISED)
def test_a_value_changes_the_objects_and_shows_in_them(path: str) -> None:
    beside = BESIDE.get(path, {})
    before, after = template(*flags(beside)).stdout, template(*flags(beside | {path: EXERCISED[path]})).stdout
    assert before != after
    leaves = _leaves(EXERCISED[path])
    assert [leaf for leaf in leaves if leaf not in after] == []


def _leaves(node: Any) -> list[str]:
    """Return the texts that the rendered chart must contain. Switches are compared by SWITCHES instead."""
    if isinstance(node, dict):
        return [*node, *(leaf for value in node.values() for leaf in _leaves(value))]
    if isinstance(node, list):
        return [leaf for item in node for leaf in _leaves(item)]
    return [] if isinstance(node, bool) else [str(node)]


def test_values_arrive_at_their_part_and_every_pod_stays_restricted() -> None:
    documents = rendered(*flags(EXERCISED))
    assert [one["kind"] for one in documents if one["kind"] in ("NetworkPolicy", "ConfigMap")] == []
    for part, prefix in (("operator", "o"), ("gateway", "g"), ("batches", "b")):
        workload = named(documents)["Deployment", f"pagefleet-{part}"]
        pod = workload["spec"]["template"]["spec"]
        assert workload["spec"]["replicas"] == EXERCISED.get(f"{part}.replicas", 1)
        assert pod["nodeSelector"] == {f"{prefix}-pool": "a"}
        assert pod["priorityClassName"] == f"{prefix}-priority"
        assert pod["imagePullSecrets"] == [{"name": "pull-secret"}]
        assert workload["spec"]["template"]["metadata"]["annotations"] == {f"{prefix}-note": "1"}
        limits = container(documents, part)["resources"]["limits"]  # Helm merges maps: requests stay the default's
        assert limits == EXERCISED[f"{part}.resources"]["limits"]
        assert list(violations(pod)) == []
    given = {one["name"]: one.get("value") for one in container(documents, "operator")["env"]}
    assert given["PAGEFLEET_NAMESPACES"] == "team-a,team-b"
    assert given["PAGEFLEET_OPERATOR_IMAGE"] == container(documents, "operator")["image"] == "o@sha256:1"
    assert {one["name"]: one.get("value") for one in container(documents, "gateway")["env"]}[
        "PAGEFLEET_GATEWAY_WORKERS"
    ] == "3"
    monitors = [one for one in documents if one["kind"] in ("PodMonitor", "PrometheusRule")]
    assert len(monitors) == 7
    assert {one["metadata"]["labels"]["release"] for one in monitors} == {"mine"}


def test_another_namespace_is_the_one_of_every_object() -> None:
    printed = run(
        "template", "other", str(CHART), "--namespace", "fleet", "--values", str(CHART / "production.yaml")
    ).stdout
    documents = [one for one in yaml.safe_load_all(printed) if one]
    assert {one["metadata"].get("namespace") for one in documents} == {"fleet", None}
    assert {subject["namespace"] for one in documents for subject in one.get("subjects", ())} == {"fleet"}
    monitors = [one["spec"] for one in documents if one["kind"] == "PodMonitor"]
    assert "pagefleet-system" not in str(monitors)
    believed = [one for one in monitors if one["podMetricsEndpoints"][0].get("honorLabels")]
    assert [one["namespaceSelector"] for one in believed] == [{"matchNames": ["fleet"]}] * 2


def test_another_chart_can_have_this_one_as_a_part_that_is_switched_on(tmp_path: Path) -> None:
    """Helm gives the part the value that the parent's `condition` reads."""
    part = {"name": "pagefleet", "version": ">=0.0.0", "condition": "pagefleet.enabled"}
    parent = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [part]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(parent))
    shutil.copytree(CHART, tmp_path / "charts/pagefleet")

    def printed(enabled: str) -> list[Any]:
        given = ("--namespace", "pagefleet-system", "--set", f"pagefleet.enabled={enabled}")
        return [one for one in yaml.safe_load_all(run("template", "platform", str(tmp_path), *given).stdout) if one]

    assert named(printed("true")) == named(rendered())
    assert printed("false") == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gatewey.replicas": 2}, "gatewey"),
        ({"gateway.replica": 2}, "replica"),
        ({"gateway.replicas": 0}, "gateway.replicas"),
        ({"gateway.replicas": "two"}, "gateway.replicas"),
        ({"operator.logLevel": "LOUD"}, "operator.logLevel"),
        ({"image.pullPolicy": "Sometimes"}, "image.pullPolicy"),
        ({"gateway.tls.secretName": ""}, "gateway.tls.secretName"),
        ({"operator.env": [{"value": "1"}]}, "operator.env"),
        ({"gateway.tls.plaintext": False}, "gateway.tls.plaintext"),
        ({"operator.prometheus.tokenSecretName": "s"}, "operator.prometheus.tokenSecretName"),
        ({"operator.prometheus.url": "prometheus:9090"}, "operator.prometheus.url"),
        ({"image.repository": "registry.example.com/p/"}, "image.repository"),
        ({"batches.storage.size": "10GB"}, "batches.storage.size"),
        (
            {"batches.enabled": True, "gateway.tls.enabled": True, "gateway.tls.plaintext": False},
            "PAGEFLEET_BATCHES_GATEWAY_URL in batches.env",
        ),
        ({"monitoring.labels": {"a": "b"}}, "monitoring.labels"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    done = template(*flags(given), check=False)
    assert done.returncode
    assert message in done.stderr


def test_the_notes_name_every_secret_that_pods_wait_for(tmp_path: Path) -> None:
    """Helm shows the notes of an installed release only: they are the value of a ConfigMap here. Without a cluster no Secret is there."""
    copy = shutil.copytree(CHART, tmp_path / "chart")
    notes = (CHART / "templates/NOTES.txt").read_text()
    (copy / "templates/_notes.tpl").write_text(f'{{{{ define "notes" }}}}{notes}{{{{ end }}}}')
    (copy / "templates/notes.yaml").write_text('text: {{ include "notes" . | quote }}')

    def shown(*given: str) -> str:
        return str(
            yaml.safe_load(run("template", "x", str(copy), "--show-only", "templates/notes.yaml", *given).stdout)[
                "text"
            ]
        )

    everything = shown(*flags(EXERCISED))
    secrets = ("alert", "gateway-tls", "keys", "picker", "prometheus", "own-key")
    assert [name for name in secrets if f"{name}-secret" not in everything] == []
    assert [line for line in shown().splitlines() if "ecret" in line and "pagefleet-alert-token" not in line] == []
    # Older kubectls take one object for this command.
    assert all(line.count("deployment/") <= 1 for line in everything.splitlines())


def test_text_is_yaml_that_reads_back() -> None:
    node = {"a": "on", "b": ["1", 1, {"c": "x: y"}], "d": {}, "e": [], "f": "plain text", "g": None, "h": "#x"}
    assert yaml.safe_load(document(node)) == node
    assert scalar(Expression(".x")) == "{{ .x }}"
    text = document({"m": When("c", Given("toYaml .v")), "k": [When("d", "i")]})
    assert text == (
        "---\n{{- if c }}\nm:\n{{- toYaml .v | nindent 2 }}\n{{- end }}\nk:\n{{- if d }}\n  - i\n{{- end }}\n"
    )


def test_a_patch_without_a_counterpart_stops_the_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "components/odd").mkdir(parents=True)
    monkeypatch.setattr(source, "MANIFESTS", tmp_path)

    def write(operation: dict[str, Any]) -> None:
        patch = {"target": {"kind": "Service", "name": "s"}, "patch": yaml.safe_dump([operation])}
        (tmp_path / "components/odd/kustomization.yaml").write_text(yaml.safe_dump({"patches": [patch]}))

    objects = [{"kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"name": "http"}], "x": 1}}]
    for operation, message in (
        ({"op": "replace", "path": "/spec/x", "value": 2}, "replace /spec/x of s"),
        ({"op": "test", "path": "/spec/ports/0/name", "value": "https"}, "it is http"),
        ({"op": "move", "path": "/spec/x", "from": "/spec/y"}, "move"),
    ):
        write(operation)
        with pytest.raises(SourceError, match=message):
            patched(objects, "odd", ".Values.x", frozenset())
    write({"op": "remove", "path": "/spec/ports/0"})
    assert len(operations("odd")) == 1
    patched(objects, "odd", ".Values.x", frozenset())
    assert objects[0]["spec"]["ports"] == [When("not (.Values.x)", {"name": "http"})]


def test_a_helm_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEFLEET_HELM", "/nonexistent/helm")
    with pytest.raises(AssetError, match="PAGEFLEET_HELM=/nonexistent/helm"):
        helm.binary()


def test_the_generator_s_command() -> None:
    done = subprocess.run([sys.executable, "-m", "pagefleet_local.chart", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert subprocess.run([sys.executable, "-m", "pagefleet_local.chart", "x"], capture_output=True).returncode == 2
