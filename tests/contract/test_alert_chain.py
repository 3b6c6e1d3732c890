"""Protects the chain from the shipped rules to a rollback, with a real Prometheus, a real Alertmanager with the shipped
routes, and the operator's webhook: at a peak, when every revision refuses requests alike, people are paged and the canary
stays; when the canary alone rejects requests, it is rolled back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from support.piece_metrics import gateway_metrics
from support.prometheus import prometheus, served
from support.sample_service import sample

from pagefleet_local.assets import monitoring
from pagefleet_local.demo.monitoring import RULES, WINDOW, comparing_rules
from pagefleet_local.fleet.kubectl import until
from pagefleet_operator.alerts.intake import Intake
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.rollout import alerts
from pagefleet_operator.domain.spec import parse
from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import Phase, RevisionRecord, RolloutRecord, Status, Weight
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.server import Server

MONITORING = Path(__file__).resolve().parents[2] / "manifests/monitoring"
ALERTMANAGER = "127.0.0.1:19493"
TOKEN = "right"


class Service:
    """The InferenceService team-a/chat with a canary in a step, as the API server would store it."""

    def __init__(self) -> None:
        spec = sample()["spec"]
        spec["rollout"]["alerts"] = {"matchLabels": {"severity": "page"}}
        observation = Observation("team-a", "chat", "uid", 1, spec, Status())
        self.canary = decide(observation, 1.0).status.stable
        self.status = Status(
            stable="old",
            canary=self.canary,
            traffic=(Weight("old", 50), Weight(self.canary, 50)),
            rollout=RolloutRecord(Phase.STEP, started=5.0),
            revisions=(RevisionRecord("old", 0.0, spec, ready=1, desired=1),),
        )
        metadata = {"namespace": "team-a", "name": "chat", "resourceVersion": "1"}
        self.document: dict[str, Any] = {"metadata": metadata, "spec": spec, "status": codec.dump(self.status)}

    async def find(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.document if (namespace, name) == ("team-a", "chat") else None

    async def store(self, document: dict[str, Any]) -> None:
        self.document = document

    @property
    def stored(self) -> Status:
        return codec.load(self.document["status"])


class Gateway:
    """What the gateway counts of each revision; `codes` are those of ten requests between two scrapes.

    It still has the counters of a revision that was rejected before and gets no requests any more.
    """

    def __init__(self, canary: str) -> None:
        self.codes: dict[str, dict[str, int]] = {"old": {"200": 10}, canary: {"200": 10}}
        self._metrics = gateway_metrics()
        self._metrics._requests.labels("team-a", "chat", "gone", "200").inc(10)

    def text(self) -> bytes:
        for revision, codes in self.codes.items():
            for code, count in codes.items():
                self._metrics._requests.labels("team-a", "chat", revision, code).inc(count)
        return self._metrics.text()


@asynccontextmanager
async def alertmanager(folder: Path, webhook: str) -> AsyncIterator[None]:
    """Run Alertmanager with the shipped routes, to `webhook`."""
    document = yaml.safe_load((MONITORING / "alertmanager.yaml").read_text())
    route, _ = document["route"]["routes"]
    route["group_interval"] = "1s"
    (target,) = document["receivers"][1]["webhook_configs"]
    target["url"] = webhook
    target["http_config"]["authorization"]["credentials_file"] = str(folder / "token")
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(document))
    with (folder / "alertmanager.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *monitoring.alertmanager(), "--config.file=alertmanager.yaml", f"--web.listen-address={ALERTMANAGER}",
            "--cluster.listen-address=", "--storage.path=alerts", cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield
        finally:
            process.kill()
            await process.wait()


def configuration(ports: dict[str, int], folder: Path) -> dict[str, Any]:
    """Prometheus with the rules that compare, and those that do not, in the same hurry."""
    rules = comparing_rules()
    (constant,) = [one for one in yaml.safe_load(RULES.read_text())["groups"] if one["name"] == "pagefleet-revisions"]
    rules["groups"].append({**constant, "rules": [{**rule, "for": "0s"} for rule in constant["rules"]]})
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    jobs = [
        {"job_name": name, "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for name, port in ports.items()
    ]
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [ALERTMANAGER]}]}]},
        "scrape_configs": jobs,
    }


async def paged() -> set[tuple[str, str, str]]:
    """Alert, revision and affected revision of what Alertmanager has."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://{ALERTMANAGER}/api/v2/alerts") as response:
                active = json.loads(await response.text())
        except aiohttp.ClientConnectionError:
            return set()
    every = [one["labels"] for one in active]
    return {(one["alertname"], one.get("revision", ""), one.get("affected_revision", "")) for one in every}


async def test_a_peak_rolls_nothing_back_and_a_canary_that_rejects_is_rolled_back(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    service, own, sent = Service(), Metrics(), list[dict[str, Any]]()
    own.planned("team-a", "chat", Plan(service.status))
    gateway = Gateway(service.canary)
    intake = Intake(tmp_path / "token", service.find, service.store, lambda *_: None)

    async def webhook(request: web.Request) -> web.Response:
        sent.extend((await request.json())["alerts"])
        return await intake.handle(request)

    async with AsyncExitStack() as open_:
        runner = await Server(own, webhook, lambda: True).start(0)
        open_.push_async_callback(runner.cleanup)
        port = runner.addresses[0][1]
        await open_.enter_async_context(alertmanager(tmp_path, f"http://127.0.0.1:{port}/alerts"))
        ports = {"operator": port, "gateway": await open_.enter_async_context(served(gateway.text))}
        await open_.enter_async_context(prometheus(tmp_path, configuration(ports, tmp_path)))

        gateway.codes = {revision: {"200": 3, "429": 7, "400": 5} for revision in gateway.codes}

        async def everybody_is_paged() -> bool:
            refused = {("PagefleetRequestsRefused", "", revision) for revision in gateway.codes}
            return refused <= await paged()

        await until(everybody_is_paged, timeout=90, what="both revisions' alerts are with Alertmanager")
        assert {revision for _, revision, _ in await paged()} == {""}
        assert sent == []
        gateway.codes = {"old": {"200": 10}, service.canary: {"400": 10}}

        async def rejected() -> bool:
            return bool(service.stored.alerts)

        await until(rejected, timeout=90, what=f"the canary's alert is stored, with windows of {WINDOW}")
    assert {one["labels"]["alertname"] for one in sent} == {"PagefleetCanaryRejects"}
    assert {one["labels"]["revision"] for one in sent} == {service.canary}
    spec = parse.parse(service.document["spec"])
    assert isinstance(spec, Spec)
    assert alerts.decides(service.stored, service.document["spec"], spec.rollout)
    pod = PodReading("p", True, False, 0.0, 1.0)
    readings = {name: RevisionReading(name, 1, (pod,)) for name in ("old", service.canary)}
    observation = Observation("team-a", "chat", "uid", 1, service.document["spec"], service.stored, revisions=readings)
    after = decide(observation, service.stored.alerts[0].received + 1).status
    assert after.traffic == (Weight("old", 100),)
    assert [(one.hash, one.reason) for one in after.rejected] == [(service.canary, "Alert")]
