"""Installs the CRD, the operator and the gateway with kubectl, as README tells a user to. Idempotent."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.fleet.kubectl import Kubectl, until

CHECKOUT = Path(__file__).resolve().parents[3]
SYSTEM = "pagefleet-system"
TOKEN_SECRET = "pagefleet-alert-token"  # noqa: S105 - the Secret's name
FIRST_MINOR_WITH_CEL = 25


@dataclass(frozen=True)
class Fleet:
    """An installed fleet: where its gateway and its operator answer, and the alert webhook's bearer token."""

    kubectl: Kubectl
    gateway: str
    operator: str
    token: str


async def install(kubectl: Kubectl, say: Callable[[str], None]) -> Fleet:
    """Apply crds/ and manifests/overlays/local, make the alert token, wait until both Deployments are available."""
    await install_crd(kubectl, say)
    say("kubectl apply -k manifests/overlays/local")
    await kubectl.run("apply", "-f", str(CHECKOUT / "manifests/base/namespace.yaml"))
    token = await _token(kubectl)
    await kubectl.run("apply", "-k", str(CHECKOUT / "manifests/overlays/local"))
    for name in ("pagefleet-operator", "pagefleet-gateway"):
        say(f"kubectl rollout status deployment/{name} -n {SYSTEM}")
        await kubectl.run("rollout", "status", f"deployment/{name}", "-n", SYSTEM, "--timeout=180s")
    return Fleet(
        kubectl,
        gateway=await _address(kubectl, "pagefleet-gateway"),
        operator=await _address(kubectl, "pagefleet-operator"),
        token=token,
    )


async def install_crd(kubectl: Kubectl, say: Callable[[str], None]) -> None:
    """Apply crds/ and wait until the API server serves it."""
    # kubectl refuses x-kubernetes-validations against an API server that predates CEL; the operator holds every
    # object to the same rules by itself.
    relaxed = [] if await kubectl.server_minor() >= FIRST_MINOR_WITH_CEL else ["--validate=false"]
    say(f"kubectl apply {' '.join([*relaxed, '-f', 'crds/'])}")
    await kubectl.run("apply", *relaxed, "-f", str(CHECKOUT / "crds"))

    # Not `kubectl wait`: it fails on an object that has no conditions at all yet.
    async def served() -> bool:
        return (await kubectl.run("get", "inferenceservices", "-A", check=False)).code == 0

    await until(served, timeout=30, what="the API server serves inferenceservices")


async def _token(kubectl: Kubectl) -> str:
    """The alert webhook's token: the one in the Secret, made at random the first time."""
    jsonpath = "jsonpath={.data.token}"
    found = await kubectl.run("get", "secret", TOKEN_SECRET, "-n", SYSTEM, "-o", jsonpath, "--ignore-not-found")
    if found.out:
        return base64.b64decode(found.out).decode()
    token = secrets.token_urlsafe(32)
    await kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": TOKEN_SECRET, "namespace": SYSTEM},
            "stringData": {"token": token},
        }
    )
    return token


async def _address(kubectl: Kubectl, service: str) -> str:
    """A Service's ClusterIP and port as a URL; kube-proxy makes it reachable from this machine."""
    found = await kubectl.get("service", service, SYSTEM)
    if found is None:
        raise RuntimeError(f"service {SYSTEM}/{service} does not exist: manifests/ did not apply")
    port = next(port["port"] for port in found["spec"]["ports"] if port["name"] == "http")
    return f"http://{found['spec']['clusterIP']}:{port}"
