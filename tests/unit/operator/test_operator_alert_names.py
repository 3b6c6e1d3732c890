"""Protects API paths from the labels of alerts, over real HTTP: an alert whose namespace, service or revision is no name is
refused, counted and named in the answer, and leads to no request; the answer states how many alerts were accepted, refused
and unmatched; a failing service keeps no other service's alerts away; a credential that is not ASCII is answered with 401.
Protects the second wall too: no builder of API paths and no request takes a part that is no name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from support.sample_service import sample

from pagefleet_operator.alerts.intake import ConflictError, Intake
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import Api
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.server import Server
from pagefleet_operator.web.session import Sessions

TOKEN = "right"
START = "2026-01-01T00:00:00Z"
HOSTILE = [
    "../../team-b/inferenceservices/chat",
    "../../../../../../api/v1/namespaces/kube-system/configmaps?limit=1#",
    "chat/status",
    "chat%2fstatus",
    "chat?fieldManager=x",
    "chat\n",
    "..",
    "Chat",
    "-chat",
    "c" * 254,
]


@dataclass
class Cluster:
    """Services `ns/chat` and `ns/other`; `reads` and `writes` are the names asked for."""

    reads: list[tuple[str, str]] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    broken: str = ""

    async def find(self, namespace: str, name: str) -> dict[str, Any] | None:
        self.reads.append((namespace, name))
        if namespace != "ns" or name not in ("chat", "other"):
            return None
        status = {"stable": "aaaa", "canary": "cccc", "rollout": {"phase": "Step", "started": START}}
        metadata = {"namespace": "ns", "name": name, "resourceVersion": "1"}
        return {"metadata": metadata, "spec": sample()["spec"], "status": status}

    async def store(self, document: dict[str, Any]) -> None:
        if document["metadata"]["name"] == self.broken:
            raise ConflictError("moved on")
        self.writes.append(document["metadata"]["name"])


@dataclass
class Hook:
    cluster: Cluster
    metrics: Metrics
    session: aiohttp.ClientSession
    port: int

    async def post(self, *alerts: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        body = {"version": "4", "alerts": list(alerts)}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with self.session.post(f"http://127.0.0.1:{self.port}/alerts", json=body, headers=headers) as response:
            return response.status, await response.json()

    def counted(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("pagefleet_operator_alerts_total", {"outcome": outcome}) or 0.0


@pytest_asyncio.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    cluster, metrics = Cluster(), Metrics()
    (tmp_path / "token").write_text(TOKEN)

    def count(outcome: str, number: int) -> None:
        metrics.alerts.labels(outcome).inc(number)

    intake = Intake(tmp_path / "token", cluster.find, cluster.store, lambda *_: None, count)
    runner = await Server(metrics, intake.handle, lambda: True).start(0)
    async with aiohttp.ClientSession() as session:
        yield Hook(cluster, metrics, session, runner.addresses[0][1])
    await runner.cleanup()


def alert(**labels: str) -> dict[str, Any]:
    named = {"alertname": "Bad", "severity": "page", "namespace": "ns", "service": "chat", "revision": "cccc"}
    return {"status": "firing", "labels": {**named, **labels}, "startsAt": START}


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: value[:20])
@pytest.mark.parametrize("label", ["namespace", "service", "revision"])
async def test_a_label_that_is_no_name_leads_to_no_request(hook: Hook, label: str, value: str) -> None:
    status, answer = await hook.post(alert(**{label: value}))
    assert (status, answer["refused"], answer["accepted"]) == (200, 1, 0)
    assert f"alerts[0].labels.{label} must be" in answer["reasons"][0]
    assert hook.cluster.reads == [] and hook.cluster.writes == []
    assert hook.counted("refused") == 1


async def test_the_label_inferenceservice_is_checked_too(hook: Hook) -> None:
    hostile = alert(inferenceservice="../chat")
    del hostile["labels"]["service"]
    _, answer = await hook.post(hostile)
    assert answer["refused"] == 1 and "alerts[0].labels.inferenceservice" in answer["reasons"][0]


async def test_a_namespace_has_no_dots_and_63_characters(hook: Hook) -> None:
    for namespace in ("team.a", "t" * 64):
        assert (await hook.post(alert(namespace=namespace)))[1]["refused"] == 1
    assert (await hook.post(alert(namespace="t" * 63)))[1]["unmatched"] == 1


async def test_the_answer_counts_what_became_of_each_alert(hook: Hook) -> None:
    """One refused alert keeps no other of its group away, and a repetition is accepted like the first."""
    nameless = alert()
    del nameless["labels"]["service"]
    mixed = (alert(), alert(service="../x"), alert(service="nobody"), alert(severity="info"), nameless)
    for times in (1, 2):
        status, answer = await hook.post(*mixed)
        assert (status, answer["accepted"], answer["refused"], answer["unmatched"]) == (200, 1, 1, 3)
        assert [hook.counted(name) for name in ("accepted", "refused", "unmatched")] == [times, times, 3 * times]
    assert set(hook.cluster.writes) == {"chat"}


async def test_a_service_that_cannot_be_written_keeps_no_other_service_s_alerts_away(hook: Hook) -> None:
    hook.cluster.broken = "chat"
    status, answer = await hook.post(alert(), alert(service="other"))
    assert (status, answer["accepted"], answer["failed"]) == (500, 1, 1)
    assert hook.cluster.writes == ["other"]
    assert "ns/chat" in answer["reasons"][0]


@pytest.mark.parametrize("given", ["Bearer ﺒ".encode(), b"Bearer \xff\xfe", b"\xed\xa0\x80"])
async def test_a_credential_that_is_not_ascii_is_refused_with_401(hook: Hook, given: bytes) -> None:
    raw = (
        b"POST /alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\nAuthorization: %b\r\n\r\n{}"
        % given
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", hook.port)
    writer.write(raw)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 401 "), answer[:80]
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"] == "a valid bearer token is required"


def test_the_status_page_refuses_a_credential_that_is_not_ascii(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    sessions = Sessions(tmp_path / "token")
    for text in ("\udcff", "ﺒ", "\ud800"):
        assert not sessions.allows(f"Bearer {text}", f"9999999999.{text}", 0.0)


BUILDERS: list[Callable[[str], str]] = [
    lambda text: paths.collection("v1", "Pod", text),
    lambda text: paths.everywhere("v1", "Pod", text),
    lambda text: paths.named("v1", "Pod", "ns", text),
    lambda text: paths.named("v1", "Pod", text, "name"),
    lambda text: paths.inference_service("ns", text),
    lambda text: paths.inference_service(text, "name"),
    lambda text: paths.of({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": text}}),
    lambda text: paths.collection(f"apps/{text}", "Deployment", "ns"),
]


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    "text", [text for text in HOSTILE if text not in ("Chat", "c" * 254)], ids=lambda text: text[:20]
)
def test_no_path_is_built_from_what_is_no_name(builder: Callable[[str], str], text: str) -> None:
    with pytest.raises(paths.PathError):
        builder(text)


async def test_no_request_goes_to_a_path_with_anything_but_names() -> None:
    """The last wall: a path that was put together elsewhere. No server is needed, because nothing is sent."""
    api = Api(None)
    for path in ("/api/v1/../../x", "/api/v1/pods?limit=1", "/api/v1/pods#", "/api/v1//pods", "http://elsewhere/", ""):
        with pytest.raises(paths.PathError):
            await api.get(path)
