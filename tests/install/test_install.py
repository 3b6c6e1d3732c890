"""Protects installing on a real API server: every kustomization and the chart's renderings are taken by it (server-side dry
run); the real helm installs, upgrades and uninstalls; the CRD and every InferenceService outlive an uninstall."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from support.helm_chart import CHART, Document, kustomization, rendered, run

from pagefleet_local.chart.source import MANIFESTS, kustomized
from pagefleet_local.fleet.install import CHECKOUT, install_crd
from pagefleet_local.fleet.kubectl import Kubectl, until

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
SYSTEM = "pagefleet-system"
KUSTOMIZATIONS = (
    "base",
    "overlays/local",
    "overlays/production",
    "overlays/air-gapped",
    "overlays/kind",
    "engines",
    "picker",
)
COMPONENTS = ("high-availability", "gateway-tls", "gateway-tls-only", "gateway-api-keys", "picker", "monitoring")
# The Prometheus operator's kinds: their own structure is not ours to test, but that they are what they say is.
FOREIGN = {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}


async def prepared(kubectl: Kubectl) -> None:
    """Install the CRD and the namespace, as README does first, and the kinds of the Prometheus operator."""
    await install_crd(kubectl, print)
    await kubectl.run("apply", "-f", str(MANIFESTS / "base/namespace.yaml"))
    open_ = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind, plural in FOREIGN.items():
        names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": open_}}
        spec = {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]}
        metadata = {"name": f"{plural}.monitoring.coreos.com"}
        definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        await kubectl.apply(definition | {"metadata": metadata, "spec": spec})

        async def served(plural: str = plural) -> bool:
            return (await kubectl.run("get", plural, "-A", check=False)).code == 0

        await until(served, timeout=30, what=f"the API server serves {plural}")


async def taken(kubectl: Kubectl, documents: list[Document], namespace: str = SYSTEM) -> None:
    """Check every object with the API server's dry run. policy/v1 is written as it is served (docs/install.md)."""
    old = await kubectl.server_minor() < 21
    for one in documents:
        if old and one["apiVersion"] == "policy/v1":
            one["apiVersion"] = "policy/v1beta1"
    text = "---\n".join(yaml.safe_dump(one) for one in documents)
    done = await kubectl.run(
        "apply", "--server-side", "--dry-run=server", "-n", namespace, "-f", "-", stdin=text, check=False
    )
    assert done.code == 0, done.text
    assert done.out.count("serverside-applied") == len(documents)


async def test_every_kustomization_is_taken_by_the_api_server(kubectl: Kubectl, tmp_path: Path) -> None:
    await prepared(kubectl)
    for folder in KUSTOMIZATIONS:
        await taken(kubectl, kustomized(MANIFESTS / folder))
    await taken(kubectl, kustomized(kustomization(tmp_path, *COMPONENTS)))


async def test_a_manifest_that_is_wrong_is_not_taken(kubectl: Kubectl) -> None:
    """The dry run above can fail."""
    await prepared(kubectl)
    documents = kustomized(MANIFESTS / "base")
    next(one for one in documents if one["kind"] == "Deployment")["spec"]["selector"] = {"matchLabels": {"other": "x"}}
    with pytest.raises(AssertionError, match="selector"):
        await taken(kubectl, documents)


async def test_what_the_chart_renders_is_taken_by_the_api_server(kubectl: Kubectl) -> None:
    await prepared(kubectl)
    for given in ((), ("production.yaml",), ("air-gapped.yaml",)):
        await taken(kubectl, rendered(*(word for name in given for word in ("--values", str(CHART / name)))))


async def test_helm_installs_upgrades_and_uninstalls(kubectl: Kubectl) -> None:
    for plural in FOREIGN.values():
        await kubectl.run("delete", "crd", f"{plural}.monitoring.coreos.com", "--ignore-not-found")
    await kubectl.run("delete", "crd", "inferenceservices.pagefleet.io", "--ignore-not-found")
    await kubectl.run("delete", "namespace", SYSTEM, "--ignore-not-found")
    cluster = ("--kubeconfig", str(kubectl.kubeconfig), "--namespace", SYSTEM)

    notes = await helm(
        "install", "pagefleet", str(CHART), *cluster, "--create-namespace", "--wait", "--timeout", "120s"
    )
    assert f"http://pagefleet-gateway.{SYSTEM}.svc/" in notes
    assert f"kubectl label namespace {SYSTEM} pod-security.kubernetes.io/enforce=restricted" in notes
    assert "create secret generic pagefleet-alert-token" in notes
    assert await replicas(kubectl) == {"pagefleet-operator": 2, "pagefleet-gateway": 1}
    await until(lambda: answers(kubectl), timeout=30, what="the API server serves inferenceservices")
    service = yaml.safe_load((MANIFESTS / "samples/chat.yaml").read_text())
    await kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    await kubectl.apply(service)

    # What the notes ask for is not said again once it is there.
    await kubectl.run("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted")
    await kubectl.run("create", "secret", "generic", "pagefleet-alert-token", "-n", SYSTEM, "--from-literal=token=t")
    given = ("gateway.replicas=3", "gateway.podDisruptionBudget=true", "gateway.workers=2")
    notes = await helm(
        "upgrade", "pagefleet", str(CHART), *cluster, "--wait", "--timeout", "120s", *(f"--set={one}" for one in given)
    )
    assert "kubectl label namespace" not in notes
    assert "create secret" not in notes
    assert await replicas(kubectl) == {"pagefleet-operator": 2, "pagefleet-gateway": 3}
    budget = await kubectl.get("poddisruptionbudget", "pagefleet-gateway", SYSTEM)
    assert budget is not None
    assert budget["spec"]["maxUnavailable"] == 1

    await helm("rollback", "pagefleet", "1", *cluster, "--wait", "--timeout", "120s")
    assert await replicas(kubectl) == {"pagefleet-operator": 2, "pagefleet-gateway": 1}
    assert await kubectl.get("poddisruptionbudget", "pagefleet-gateway", SYSTEM) is None
    history = json.loads(await helm("history", "pagefleet", *cluster, "-o", "json"))
    assert [one["status"] for one in history] == ["superseded", "superseded", "deployed"]

    await helm("uninstall", "pagefleet", *cluster, "--wait")
    assert await replicas(kubectl) == {}
    assert "pagefleet" not in (await kubectl.run("get", "clusterroles,clusterrolebindings", "-o", "name")).out
    assert (await kubectl.run("get", "crd", "inferenceservices.pagefleet.io")).code == 0
    assert await kubectl.get("inferenceservice", "chat", "team-a") is not None


async def test_helm_upgrades_the_crd_by_what_it_shows(kubectl: Kubectl) -> None:
    """The step that docs/install.md puts before `helm upgrade`."""
    shown = run("show", "crds", str(CHART)).stdout
    relaxed = [] if await kubectl.server_minor() >= 25 else ["--validate=false"]
    done = await kubectl.run("apply", *relaxed, "-f", "-", stdin=shown)
    assert "inferenceservices.pagefleet.io" in done.out
    assert yaml.safe_load(shown) == yaml.safe_load((CHECKOUT / "crds/inferenceservices.yaml").read_text())


async def helm(*arguments: str) -> str:
    """Return the output of helm. It runs in a thread, because the status-only node serves meanwhile."""
    return (await asyncio.to_thread(run, *arguments)).stdout


async def replicas(kubectl: Kubectl) -> dict[str, int]:
    """Return the available replicas of the Deployments in pagefleet-system."""
    deployments = await kubectl.list("deployments", SYSTEM)
    return {one["metadata"]["name"]: one["status"].get("availableReplicas", 0) for one in deployments}


async def answers(kubectl: Kubectl) -> bool:
    return (await kubectl.run("get", "inferenceservices", "-A", check=False)).code == 0
