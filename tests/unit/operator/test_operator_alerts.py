"""Protects the alert webhook over real HTTP and HTTPS: forged and malformed payloads change nothing, an alert is stored
before the answer, a storm of 1,000 posts is a handful of writes, and a renewed certificate is taken over."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from support.sample_service import sample

from pagefleet_local.assets import debian
from pagefleet_operator.alerts.coalesce import KNOWN_SECONDS, PAUSE_SECONDS
from pagefleet_operator.alerts.intake import ConflictError, Intake
from pagefleet_operator.alerts.payload import MAX_LABELS, MAX_STORED, merge
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.status import AlertRecord, Status
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.secure import Secure, serve
from pagefleet_operator.web.server import Server

TOKEN = "right"
START = "2026-01-01T00:00:00Z"
MONITORING = Path(__file__).resolve().parents[3] / "manifests/monitoring"


class Store:
    """One InferenceService; a write takes a moment, as the API server's does."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {
            "metadata": {"namespace": "ns", "name": "chat", "resourceVersion": "1"},
            "spec": sample()["spec"],
            "status": {"stable": "aaaa", "canary": "cccc", "rollout": {"phase": "Step", "started": START}},
        }
        self.writes = 0
        self.woken = 0
        self.conflicts = 0

    async def find(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.document if (namespace, name) == ("ns", "chat") else None

    async def store(self, document: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)
        if self.conflicts:
            self.conflicts -= 1
            raise ConflictError("moved on")
        self.writes += 1
        self.document = document

    @property
    def alerts(self) -> list[tuple[str, bool]]:
        status = codec.load(self.document["status"])
        return [(alert.fingerprint, alert.resolved) for alert in status.alerts]


class Hook:
    def __init__(self, store: Store, url: str, session: aiohttp.ClientSession, token_file: Path) -> None:
        self.store, self.url, self.session, self.token_file = store, url, session, token_file

    async def post(self, body: object, token: str = TOKEN, **headers: str) -> int:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        async with self.session.post(f"{self.url}/alerts", data=data, headers=sent) as response:
            return response.status


@pytest_asyncio.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    store = Store()
    (tmp_path / "token").write_text(TOKEN + "\n")

    def wake(namespace: str, name: str) -> None:
        store.woken += 1

    intake = Intake(tmp_path / "token", store.find, store.store, wake)
    runner = await Server(Metrics(), intake.handle, lambda: True).start(0)
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        yield Hook(store, f"http://127.0.0.1:{port}", session, tmp_path / "token")
    await runner.cleanup()


def alert(fingerprint: str = "f", status: str = "firing", start: str = START, **labels: str) -> dict[str, Any]:
    named = {"alertname": "Bad", "severity": "page", "namespace": "ns", "service": "chat", "revision": "cccc"}
    return {"status": status, "labels": {**named, **labels}, "startsAt": start, "fingerprint": fingerprint}


def payload(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {"version": "4", "status": "firing", "groupKey": "g", "alerts": list(alerts)}


async def test_it_is_stored_before_the_answer_and_once(hook: Hook) -> None:
    assert await hook.post(payload(alert())) == 200
    assert hook.store.alerts == [("f", False)]
    assert await hook.post(payload(alert(), alert())) == 200
    assert hook.store.writes == 1
    assert await hook.post(payload(alert(status="resolved"))) == 200
    assert hook.store.alerts == [("f", True)]
    assert await hook.post(payload(alert())) == 200
    assert hook.store.alerts == [("f", True)], "a firing that comes late does not undo its resolution"
    assert await hook.post(payload(alert(start="2026-01-02T00:00:00Z"))) == 200
    assert hook.store.alerts == [("f", True), ("f", False)]


async def test_an_alert_without_a_revision_is_not_stored_and_the_answer_names_the_field(hook: Hook) -> None:
    async def answer(*alerts: dict[str, Any]) -> dict[str, Any]:
        sent = {"Authorization": f"Bearer {TOKEN}"}
        async with hook.session.post(f"{hook.url}/alerts", json=payload(*alerts), headers=sent) as response:
            assert response.status == 200
            return dict(await response.json())

    body = await answer(alert("whole", revision=""), alert("mine"))
    assert (body["accepted"], body["unmatched"]) == (1, 1)
    assert body["reasons"] == [
        "ns/chat: 1 alerts have no label revision; such an alert counts only with spec.rollout.alerts.withoutRevision: act"
    ]
    assert hook.store.alerts == [("mine", False)]
    hook.store.document["spec"]["rollout"]["alerts"]["withoutRevision"] = "act"
    body = await answer(alert("service", revision=""))
    assert (body["accepted"], body["reasons"]) == (1, [])
    hook.store.document["spec"]["rollout"]["alerts"]["withoutRevision"] = "ignore"
    assert (await answer(alert("service", "resolved", revision="")))["accepted"] == 1
    assert hook.store.alerts == [("mine", False), ("service", True)], "what is stored ends with its alert"


async def test_an_invalid_spec_loses_no_alert_that_asks_for_a_pause_and_no_end_of_one(hook: Hook) -> None:
    """Alertmanager sends an end once. A rollout whose alert never ended would stay paused when the spec is mended."""
    rollout = hook.store.document["spec"]["rollout"]
    rollout["alerts"]["onAlert"] = "pause"
    assert await hook.post(payload(alert())) == 200
    assert hook.store.alerts == [("f", False)]
    rollout["steps"] = "soon"
    assert await hook.post(payload(alert(status="resolved"), alert("g"))) == 200
    assert hook.store.alerts == [("f", True), ("g", False)]
    del rollout["alerts"], rollout["steps"]
    assert await hook.post(payload(alert("g", "resolved"), alert("h"), alert("i", "resolved"))) == 200
    assert hook.store.alerts == [("f", True), ("g", True)], (
        "of a spec that takes none only ends of stored ones are taken"
    )


async def test_a_group_with_others_alerts_is_taken_apart(hook: Hook) -> None:
    foreign = [alert("a", namespace="other"), alert("b", service="other"), alert("c", severity="info")]
    assert await hook.post(payload(*foreign, alert("mine"))) == 200
    assert hook.store.alerts == [("mine", False)]


async def test_an_alert_with_too_many_labels_keeps_no_other_one_away(hook: Hook) -> None:
    """Alertmanager sends a payload that is refused as a whole no more: the rollback that the others asked for did not come."""
    many = {f"label_{number}": "x" for number in range(MAX_LABELS)}
    sent = {"Authorization": f"Bearer {TOKEN}"}
    body = payload(alert("wide", **many), alert("mine"))
    async with hook.session.post(f"{hook.url}/alerts", json=body, headers=sent) as response:
        assert response.status == 200
        told = await response.json()
    assert (told["accepted"], told["refused"]) == (1, 1)
    assert told["reasons"] == [f"alerts[0].labels must be at most {MAX_LABELS}, not {MAX_LABELS + 5}"]
    assert hook.store.alerts == [("mine", False)]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"version": "3", "alerts": []}', b'{"version": "4", "alerts": {}}', b"[" * 200_000,
     b'{"version": "4", "alerts": [{"status": "firing"}]}', json.dumps(payload({**alert(), "startsAt": "soon"})).encode(),
     json.dumps(payload({**alert(), "labels": {"namespace": 5}})).encode(), b"x" * 2_000_000],
    ids=lambda body: str(body[:12]),
)  # fmt: skip
async def test_malformed_payloads_change_nothing(hook: Hook, body: bytes) -> None:
    assert 400 <= await hook.post(body) < 500
    assert hook.store.writes == 0


async def test_forged_payloads_change_nothing(hook: Hook) -> None:
    for token in ("", "wrong", TOKEN + "x"):
        assert await hook.post(payload(alert()), token=token) == 401
    bomb = gzip.compress(b"0" * 50_000_000)
    assert await hook.post(bomb, **{"Content-Encoding": "gzip"}) in (400, 413, 415)
    assert hook.store.writes == 0


async def test_the_token_is_read_again(hook: Hook) -> None:
    hook.token_file.write_text("renewed")
    assert await hook.post(payload(alert())) == 401
    assert await hook.post(payload(alert()), token="renewed") == 200
    hook.token_file.unlink()
    assert await hook.post(payload(alert()), token="renewed") == 401


async def test_a_storm_is_few_writes(hook: Hook) -> None:
    """1,000 posts at once: the same alert, others, resolved ones, in any order. At most five writes a second, however long a busy
    machine takes to send them."""
    began = time.monotonic()
    bodies = [payload(alert(f"f{n % 40}", ("firing", "firing", "resolved")[n % 3])) for n in range(1000)]
    codes = await asyncio.gather(*(hook.post(body) for body in bodies))
    assert set(codes) == {200}
    assert hook.store.writes <= max(5.0, 1 + (time.monotonic() - began) / PAUSE_SECONDS)
    assert len(hook.store.alerts) <= MAX_STORED
    before, began = hook.store.writes, time.monotonic()
    codes = await asyncio.gather(*(hook.post(payload(alert("f1"))) for _ in range(300)))
    assert set(codes) == {200}
    assert hook.store.writes - before <= 1 + (time.monotonic() - began) / KNOWN_SECONDS, "it is stored already"


async def test_a_storm_about_others_does_not_push_out_what_counts(hook: Hook) -> None:
    assert await hook.post(payload(*(alert(f"old{n}", revision="dddd") for n in range(40)))) == 200
    assert await hook.post(payload(alert("mine"))) == 200
    assert ("mine", False) in hook.store.alerts


async def test_conflicts_are_tried_again_and_a_failed_write_is_no_200(hook: Hook) -> None:
    hook.store.conflicts = 3
    assert await hook.post(payload(alert())) == 200
    assert hook.store.alerts == [("f", False)]
    hook.store.conflicts = 100
    codes = await asyncio.gather(*(hook.post(payload(alert(f"g{n}"))) for n in range(3)))
    assert set(codes) == {500}
    hook.store.conflicts = 0
    assert await hook.post(payload(alert("g0"))) == 200
    assert ("g0", False) in hook.store.alerts


def certificate(folder: Path, name: str) -> bytes:
    """Write a self-signed certificate for 127.0.0.1 and its key with openssl."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "tls.key", "-out", folder / "tls.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    return (folder / "tls.crt").read_bytes()


async def test_https_and_a_renewed_certificate(tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    first = certificate(tmp_path, "first")
    secure, server = Secure(tmp_path, 0), Server(Metrics(), answer, lambda: True)
    runner = await server.start(0)
    await server.listen(runner, secure)
    port = runner.addresses[1][1]

    async def posted(trusted: bytes) -> int:
        context = ssl.create_default_context(cadata=trusted.decode())
        connector = aiohttp.TCPConnector(ssl=context)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"https://127.0.0.1:{port}/alerts", json={}) as response,
        ):
            return response.status

    try:
        assert await posted(first) == 200
        assert not secure.renew()
        second = certificate(tmp_path, "second")
        assert secure.renew()
        assert await posted(second) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await posted(first)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("before", [(), ("tls.crt", "tls.key")], ids=["no Secret", "unreadable"])
async def test_https_begins_with_the_certificate_also_of_an_operator_that_runs_already(
    before: tuple[str, ...], tmp_path: Path
) -> None:
    """A certificate that cannot be read ends nothing: the operator decides without HTTPS."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    for name in before:
        (tmp_path / name).write_text("no certificate")
    server, begun = Server(Metrics(), answer, lambda: True), asyncio.Event()
    runner = await server.start(0)

    async def listen(secure: Secure) -> None:
        await server.listen(runner, secure)
        begun.set()

    serving = asyncio.create_task(serve(tmp_path, 0, listen, every=0.01))
    try:
        await asyncio.sleep(0)  # it has looked once
        assert not (serving.done() or begun.is_set())
        trusted = certificate(tmp_path, "operator").decode()
        await asyncio.wait_for(begun.wait(), 10)
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=trusted))
        url = f"https://127.0.0.1:{runner.addresses[1][1]}/healthz"
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as response:
            assert response.status == 200
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await runner.cleanup()


def test_an_alert_whose_end_arrives_before_its_beginning_is_over() -> None:
    begin = AlertRecord("f", "Bad", 10.0, "b", 13.0, {"severity": "page"})
    end = replace(begin, received=12.0, resolved=True)
    for order in ((begin, end), (end, begin)):
        status = Status(stable="a", canary="b")
        for one in order:
            status = merge(status, [one])
        assert [one.resolved for one in status.alerts] == [True]


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["namespace=a", "service=chat", "revision=c1", "severity=page"], "pagefleet,default"),
        (["namespace=a", "service=chat", "affected_revision=c1", "severity=page"], "default"),
        (["namespace=a", "service=chat", "severity=ticket"], "default"),
    ],
)
def test_people_get_every_alert_and_the_operator_those_that_name_a_canary(labels: list[str], receivers: str) -> None:
    """A route with `continue` still keeps an alert from the root's receiver, where no other route takes it."""
    amtool, path = debian.unpacked("prometheus-alertmanager") / "usr/bin/amtool", MONITORING / "alertmanager.yaml"
    command = [amtool, "config", "routes", "test", f"--config.file={path}", *labels]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == receivers


def test_the_shipped_receiver_is_what_alertmanager_reads() -> None:
    path = MONITORING / "alertmanager.yaml"
    subprocess.run([debian.unpacked("prometheus-alertmanager") / "usr/bin/amtool", "check-config", path], check=True)
    receiver = yaml.safe_load(path.read_text())
    hooks = [hook for one in receiver["receivers"] for hook in one.get("webhook_configs", ())]
    assert [hook["send_resolved"] for hook in hooks] == [True]
