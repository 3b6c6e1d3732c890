"""InferenceServices on the control plane of tests/cluster: applies them, waits for them, alerts them, reads the audit log."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from support.cluster.plane import OPERATOR_USER, TOKEN, Plane
from support.sample_service import sample

from pagefleet_contract.names import RECORD_SELECTOR, SERVICE_LABEL
from pagefleet_local.fleet.kubectl import Document, until
from pagefleet_local.fleet.view import View

NAMESPACE = "default"
WRITES = ("create", "update", "patch", "delete")


def service(name: str, **engine: object) -> Document:
    document = sample()
    document["metadata"] = {"name": name, "namespace": NAMESPACE}
    document["spec"]["engine"].update(engine)
    return document


async def view(plane: Plane, name: str, namespace: str = NAMESPACE) -> View:
    document = await plane.kubectl.get("isvc", name, namespace)
    assert document is not None
    return View(document)


async def settled(
    plane: Plane, name: str, what: str, holds: Any, *, namespace: str = NAMESPACE, timeout: float = 40
) -> View:
    async def check() -> bool:
        return bool(holds(await view(plane, name, namespace)))

    await until(check, timeout=timeout, what=what, interval=0.3)
    return await view(plane, name, namespace)


async def ready(plane: Plane, name: str, **engine: object) -> View:
    await plane.kubectl.apply(service(name, **engine))
    return await settled(plane, name, f"{name} is Ready", lambda v: v.is_true("Ready"))


async def removed(plane: Plane, name: str) -> None:
    """Delete a service with what is known of it: the next one of that name begins as a new one."""
    await plane.kubectl.run("delete", "isvc", name, "-n", NAMESPACE, "--ignore-not-found")
    own = f"{RECORD_SELECTOR},{SERVICE_LABEL}={name}"
    await plane.kubectl.run("delete", "controllerrevisions", "-n", NAMESPACE, "-l", own)


def audited(plane: Plane, verbs: tuple[str, ...] = WRITES) -> list[dict[str, Any]]:
    """Return the operator's requests to the API server, from the audit log."""
    lines = (plane.layout.logs / "audit.log").read_text().splitlines()
    events = [json.loads(line) for line in lines if line.strip()]
    return [event for event in events if event["user"].get("username") == OPERATOR_USER and event["verb"] in verbs]


async def post(plane: Plane, payload: object, token: str = TOKEN) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{plane.operator_url}/alerts", json=payload, headers=headers) as response,
    ):
        return response.status


async def decided(plane: Plane, name: str) -> float:
    """Return when the operator last decided about a service, in UNIX seconds, by its status page."""
    url, headers = f"{plane.operator_url}/ui/api/services/{NAMESPACE}/{name}", {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as response:
        page = await response.json()
    return float(page["read"])


async def decided_more(plane: Plane, name: str, times: int = 4) -> None:
    """Wait until the operator has decided about a service so many times more."""
    decisions = {await decided(plane, name)}

    async def enough() -> bool:
        decisions.add(await decided(plane, name))
        return len(decisions) > times

    await until(enough, timeout=60, what=f"{times} more decisions")


def alert(name: str, revision: str, status: str = "firing") -> dict[str, object]:
    labels = {"alertname": "Bad", "severity": "page", "namespace": NAMESPACE, "service": name, "revision": revision}
    entry = {"status": status, "labels": labels, "startsAt": "2026-01-01T00:00:00Z", "fingerprint": f"f-{name}"}
    return {"version": "4", "alerts": [entry]}
