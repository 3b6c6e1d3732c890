"""Installs the CRD, the operator and the gateway with kubectl, by the steps of README. Idempotent."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagefleet_contract.names import GATEWAY, OPERATOR, PLURAL, SYSTEM_NAMESPACE
from pagefleet_local.fleet.access import Access, Direct
from pagefleet_local.fleet.kubectl import Kubectl, until

CHECKOUT = Path(__file__).resolve().parents[3]
TOKEN_SECRET = "pagefleet-alert-token"  # noqa: S105 - the Secret's name
FIRST_MINOR_WITH_CEL = 25


@dataclass(frozen=True)
class Fleet:
    """An installed fleet: where its gateway and its operator answer, the alert webhook's bearer token, and the way to it."""

    kubectl: Kubectl
    gateway: str
    operator: str
    token: str
    access: Access


async def install(
    kubectl: Kubectl, say: Callable[[str], None], *, overlay: str = "local", access: Access | None = None
) -> Fleet:
    """Apply crds/ and manifests/overlays/`overlay`, make the alert token, wait until both Deployments are available."""
    await install_crd(kubectl, say)
    say(f"kubectl apply -k manifests/overlays/{overlay}")
    await kubectl.run("apply", "-f", str(CHECKOUT / "manifests/base/namespace.yaml"))
    token = await _token(kubectl)
    await kubectl.run("apply", "-k", str(CHECKOUT / f"manifests/overlays/{overlay}"))
    for name in (OPERATOR, GATEWAY):
        say(f"kubectl rollout status deployment/{name} -n {SYSTEM_NAMESPACE}")
        await kubectl.run("rollout", "status", f"deployment/{name}", "-n", SYSTEM_NAMESPACE, "--timeout=180s")
    way = access or Direct()
    await way.open(kubectl)
    return Fleet(
        kubectl,
        gateway=await way.address(kubectl, GATEWAY),
        operator=await way.address(kubectl, OPERATOR),
        token=token,
        access=way,
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
        return (await kubectl.run("get", PLURAL, "-A", check=False)).code == 0

    await until(served, timeout=30, what="the API server serves inferenceservices")


async def _token(kubectl: Kubectl) -> str:
    """The alert webhook's token: the one in the Secret, made at random the first time."""
    jsonpath = "jsonpath={.data.token}"
    secret = await kubectl.run(
        "get", "secret", TOKEN_SECRET, "-n", SYSTEM_NAMESPACE, "-o", jsonpath, "--ignore-not-found"
    )
    if secret.out:
        return base64.b64decode(secret.out).decode()
    token = secrets.token_urlsafe(32)
    await kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": TOKEN_SECRET, "namespace": SYSTEM_NAMESPACE},
            "stringData": {"token": token},
        }
    )
    return token
