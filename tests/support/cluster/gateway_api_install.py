"""Puts the kinds of the Gateway API (gateway_api_kinds.py) on the tests' API server, and takes them away."""

from __future__ import annotations

from support.cluster.gateway_api_kinds import GATEWAY, INFERENCE, OBJECTIVES, documents
from support.cluster.plane import Plane

from pagefleet_local.fleet.kubectl import until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def install(plane: Plane, plural: str, *, first_api: bool = False) -> None:
    document = documents(first_api=first_api)[plural]
    path = f"{CRDS}/{document['metadata']['name']}"
    present = await plane.api.find(path)
    if present is None:
        await plane.api.create(CRDS, document)
    else:
        await plane.api.replace(path, {**document, "metadata": present["metadata"]})

    async def established() -> bool:
        definition = await plane.api.get(path)
        conditions = (definition.get("status") or {}).get("conditions") or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await until(established, timeout=20, what=f"{plural} are served", interval=0.1)


async def uninstall(plane: Plane) -> None:
    for name in (f"httproutes.{GATEWAY}", f"inferencepools.{INFERENCE}", f"inferenceobjectives.{OBJECTIVES}"):
        await plane.kubectl.run("delete", "crd", name, "--ignore-not-found")
