"""The production overlay's gateway (it demands API keys) with examples/coding-questions.yaml (its engines demand one too).

Protects least privilege on a real API server: without `manifests/engine-keys` the gateway's account reads no Secret; with it
exactly the named one, by `get`, with the account's own token.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from kubernetes.aio import client
from support.cluster.plane import CHECKOUT, Plane

from pagefleet_gateway.cluster.objects import pod_from
from pagefleet_gateway.watching.engine_keys import ReadError, secrets_of
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.manifests.deployment import deployment

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
ACCOUNT = "system:serviceaccount:pagefleet-system:pagefleet-gateway"
RBAC = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")


async def rendered(plane: Plane, folder: str) -> list[dict[str, Any]]:
    result = await plane.kubectl.run("kustomize", str(CHECKOUT / "manifests" / folder))
    return [document for document in yaml.safe_load_all(result.out) if document]


async def allowed(plane: Plane, verb: str, resource: str, namespace: str) -> bool:
    asked = ("auth", "can-i", verb, resource, "-n", namespace, f"--as={ACCOUNT}")
    return (await plane.kubectl.run(*asked, check=False)).out.strip() == "yes"


async def test_the_gateway_reads_the_examples_key_and_no_other_secret(plane: Plane) -> None:
    overlay = await rendered(plane, "overlays/production")
    gateway = next(
        one for one in overlay if one["kind"] == "Deployment" and one["metadata"]["name"].endswith("gateway")
    )
    environment = gateway["spec"]["template"]["spec"]["containers"][0]["env"]
    assert "PAGEFLEET_GATEWAY_API_KEYS_FILE" in {variable["name"] for variable in environment}
    for document in overlay:
        if document["kind"] in RBAC and "gateway" in document["metadata"]["name"]:
            await plane.kubectl.apply(document)
    await plane.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "developers"}})
    for name in ("coding-keys", "other"):
        metadata = {"name": name, "namespace": "developers"}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"keys.txt": f"key-{name}"}}
        await plane.kubectl.apply(secret)
    assert not await allowed(plane, "get", "secrets/coding-keys", "developers")
    folder = CHECKOUT / "manifests" / "engine-keys"
    text = (await plane.kubectl.run("kustomize", str(folder))).out
    words = (folder / "kustomization.yaml").read_text()
    for old, new in (("namespace: default", "namespace: developers"), ("engine-keys", "coding-keys")):
        assert f"s/{old}/{new}/" in words  # as the file's own command has it
        text = text.replace(old, new)
    await plane.kubectl.run("apply", "-f", "-", stdin=text)
    assert await allowed(plane, "get", "secrets/coding-keys", "developers")
    for verb, resource, namespace in (
        ("get", "secrets/other", "developers"),
        ("list", "secrets", "developers"),
        ("watch", "secrets", "developers"),
        ("get", "secrets/coding-keys", "default"),
    ):
        assert not await allowed(plane, verb, resource, namespace), (verb, resource, namespace)

    example = yaml.safe_load((CHECKOUT / "examples" / "coding-questions.yaml").read_text())
    child = Child("developers", "coding", "uid", "aaaaaaaa", example["spec"])
    template = deployment(child, 1)["spec"]["template"]
    pod = pod_from({**template, "status": {"podIP": "10.0.0.1", "phase": "Running"}})
    assert pod is not None and pod.key_secret is not None
    token = (await plane.kubectl.run("create", "token", "pagefleet-gateway", "-n", "pagefleet-system")).out.strip()
    settings = client.Configuration()
    configuration = yaml.safe_load(plane.kubectl.kubeconfig.read_text())
    settings.host = configuration["clusters"][0]["cluster"]["server"]
    settings.verify_ssl = False
    settings.api_key = {"authorization": f"Bearer {token}"}
    async with client.ApiClient(settings) as api:
        read = secrets_of(api)
        assert (await read("developers", pod.key_secret[0]))[pod.key_secret[1]] == b"key-coding-keys"
        with pytest.raises(ReadError, match="403"):
            await read("developers", "other")
