"""Puts a CustomResourceDefinition of somebody else on the tests' API server."""

from __future__ import annotations

from pagefleet_local.fleet.kubectl import until
from pagefleet_operator.kube.client import Api, Document

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def define(api: Api, document: Document) -> None:
    """Create or replace the definition, and return when its kind is served."""
    path = f"{CRDS}/{document['metadata']['name']}"
    present = await api.find(path)
    if present is None:
        await api.create(CRDS, document)
    else:
        await api.replace(path, {**document, "metadata": present["metadata"]})

    async def established() -> bool:
        conditions = ((await api.get(path)).get("status") or {}).get("conditions") or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await until(established, timeout=20, what=f"{document['metadata']['name']} is served", interval=0.1)
