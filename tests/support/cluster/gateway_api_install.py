"""Puts the kinds of the Gateway API (gateway_api_kinds.py) on the tests' API server, takes them away, and answers as the
controller of a gateway does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
from support.cluster.definitions import define
from support.cluster.gateway_api_kinds import GATEWAY, INFERENCE, OBJECTIVES, documents
from support.cluster.plane import Plane

from pagefleet_operator.kube.client import Api, ApiError, Document

ROUTES = f"/apis/{GATEWAY}/v1/httproutes"
PASSING = (ApiError, aiohttp.ClientError, TimeoutError)


async def install(api: Api, plural: str, *, first_api: bool = False) -> None:
    await define(api, documents(first_api=first_api)[plural])


async def uninstall(plane: Plane) -> None:
    for name in (f"httproutes.{GATEWAY}", f"inferencepools.{INFERENCE}", f"inferenceobjectives.{OBJECTIVES}"):
        await plane.kubectl.run("delete", "crd", name, "--ignore-not-found")


def answered(route: Document, status: str, reason: str, message: str) -> Document:
    """Return the route with the status that a gateway's controller writes about its present generation."""
    metadata = route["metadata"]
    condition = {
        "type": "Accepted",
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": metadata["generation"],
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    parent: dict[str, Any] = {
        "parentRef": {"name": "edge", "namespace": metadata["namespace"]},
        "controllerName": "example.org/edge",
        "conditions": [condition],
    }
    return {**route, "status": {"parents": [parent]}}


async def accept_routes(api: Api) -> None:
    """Accept every HTTPRoute, for ever, as a gateway that is always up to date."""
    while True:
        with contextlib.suppress(*PASSING):
            for route in (await api.get(ROUTES))["items"]:
                accepted = answered(route, "True", "Accepted", "fine")
                if route.get("status") != accepted["status"]:
                    path = f"/apis/{GATEWAY}/v1/namespaces/{route['metadata']['namespace']}/httproutes"
                    await api.replace(f"{path}/{route['metadata']['name']}/status", accepted)
        await asyncio.sleep(0.2)
