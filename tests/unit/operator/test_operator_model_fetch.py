"""Protects what the operator does about models that are fetched: the container before the engine, its faults, and the condition that tells
how far it is in few words and few writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.golden_manifests import child_of, spec_of
from support.loopback import own_address

from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain import model_fetch
from pagefleet_operator.domain.base.revision import revision_hash
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.status.condition import NewCondition, with_transition_time
from pagefleet_operator.domain.status.observation import (
    FetchReading,
    Observation,
    PodFault,
    PodReading,
    RevisionReading,
)
from pagefleet_operator.domain.status.status import Status, Weight
from pagefleet_operator.kube import readings
from pagefleet_operator.metrics.accounts import unlimited
from pagefleet_operator.metrics.engine_readings import EngineReadings, parse_fetch
from pagefleet_operator.metrics.fetching import measuring_session

GB = 1_000_000_000
IMAGE = "registry.example.com/pagefleet/operator:1"


def pod_of(**model: Any) -> dict[str, Any]:
    spec = spec_of("minimal")
    spec["model"] = {**spec["model"], **model}
    pod: dict[str, Any] = deployment(replace(child_of(spec), image=IMAGE), 1)["spec"]["template"]["spec"]
    return pod


def test_only_a_pod_whose_model_is_on_the_hub_has_the_container() -> None:
    assert "initContainers" not in pod_of()
    [one] = pod_of(source="hf://org/name@v1")["initContainers"]
    assert one["image"] == IMAGE
    assert one["args"][-1] == "org--name@v1=hf://org/name@v1"


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("minimal", "--model=file:///tmp/models/org--m"),
        ("vllm", "--model=/tmp/models/org--m"),
        ("tgi", "--model-id=/tmp/models/org--m"),
    ],
)
def test_the_engine_is_given_the_link_of_the_fetched_model(name: str, argument: str) -> None:
    spec = spec_of(name)
    spec["model"] = {**spec["model"], "source": "hf://org/m"}
    pod = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
    assert argument in pod["containers"][0]["args"]
    assert "org--m=hf://org/m" in pod["initContainers"][0]["args"]
    assert (
        f"--into={argument.partition('=')[2].removeprefix('file://').removesuffix('/org--m')}"
        in pod["initContainers"][0]["args"]
    )


def test_a_custom_engine_fetches_by_itself() -> None:
    spec = spec_of("custom")
    spec["model"] = {**spec["model"], "source": "hf://org/m@v1", "cache": {"claim": "fetched"}}
    spec["engine"] = {name: value for name, value in spec["engine"].items() if name != "env"}
    pod = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    told = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert (told["PAGEFLEET_MODEL"], told["PAGEFLEET_MODEL_REVISION"]) == ("org/m", "v1")
    assert told["HF_HOME"] == "/var/cache/pagefleet"
    assert {"name": "model-cache", "mountPath": "/var/cache/pagefleet"} in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("uri", ["s3://models/llama", "gs://models/llama", "az://models/llama"])
def test_a_bucket_is_fetched_for_every_engine(uri: str) -> None:
    for name, argument in (
        ("minimal", "--model=file:///tmp/models/models--llama"),
        ("vllm", "--model=/tmp/models/models--llama"),
    ):
        spec = spec_of(name)
        spec["model"] = {**spec["model"], "source": f"{uri}/", "cache": {"claim": "weights"}}
        assert isinstance(parse(spec), Spec)
        pod = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
        assert argument in pod["containers"][0]["args"]
        assert pod["initContainers"][0]["args"][-1] == f"models--llama={uri}/"
    spec = spec_of("custom")
    spec["model"] = {**spec["model"], "source": uri}
    pod = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
    assert {"name": "PAGEFLEET_MODEL", "value": "/tmp/models/models--llama"} in pod["containers"][0]["env"]
    assert pod["initContainers"][0]["args"][-1] == f"models--llama={uri}"
    # A NetworkPolicy for the port named http lets the operator read the progress at the engine's port and at no other.
    assert [one["containerPort"] for one in pod["containers"][0]["ports"] if one["name"] == "http"] == [9090]
    assert "--port=9090" in pod["initContainers"][0]["args"]


IMAGE_URI = f"oci://registry.example:5000/models/llama:8b@sha256:{'0123456789abcdef' * 4}"


def test_an_image_is_mounted_unless_it_is_to_be_fetched() -> None:
    mounted = pod_of(source=IMAGE_URI)
    assert mounted["volumes"] == pod_of(source=IMAGE_URI, oci="Mount")["volumes"]
    assert [volume for volume in mounted["volumes"] if "image" in volume]
    assert "initContainers" not in mounted
    adapters = [{"name": "a", "source": f"{IMAGE_URI}/adapter"}]
    fetched = pod_of(source=f"{IMAGE_URI}/models/8b/", adapters=adapters, oci="Fetch")
    assert not [volume for volume in fetched["volumes"] if "image" in volume]
    [one] = fetched["initContainers"]
    assert one["args"][-2:] == [
        f"0123456789abcdef--models--8b={IMAGE_URI}/models/8b/",
        f"0123456789abcdef--adapter={IMAGE_URI}/adapter",
    ]
    args = fetched["containers"][0]["args"]
    assert "--model=file:///tmp/models/0123456789abcdef--models--8b" in args
    assert "--lora-adapter=a=/tmp/models/0123456789abcdef--adapter" in args


def test_only_the_container_that_fetches_reads_the_pull_secrets() -> None:
    spec = spec_of("minimal")
    spec["pod"] = {"imagePullSecrets": [{"name": "one"}, {"name": "two"}]}
    spec["model"] = {"source": IMAGE_URI}
    assert "pull-secrets" not in str(deployment(child_of(spec), 1))
    spec["model"]["oci"] = "Fetch"
    pod = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "pull-secrets"]
    named = [(one["secret"]["name"], one["secret"]["optional"]) for one in volume["projected"]["sources"]]
    assert named == [("one", True), ("two", True)]
    [container] = pod["initContainers"]
    assert "--pull-secrets=/etc/pagefleet/pull-secrets" in container["args"]
    assert [one["name"] for one in container["volumeMounts"]] == ["tmp", "pull-secrets"]
    assert "pull-secrets" not in str(pod["containers"])


def status(state: dict[str, Any], last: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "initContainerStatuses": [{"name": "fetch", "state": state, "lastState": {"terminated": last} if last else {}}]
    }


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}
RUNNING: dict[str, Any] = {"running": {}}
TOLD = '{"field": "spec.model.source", "message": "the hub has no such model"}'


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (status(RUNNING), None),
        (status(RUNNING, {"exitCode": 75, "message": TOLD}), None),
        (status({"terminated": {"exitCode": 0, "message": "done"}}), None),
        (status(BACK_OFF, {"exitCode": 78, "message": TOLD}), PodFault("ModelNotFound", "the hub has no such model", "spec.model.source")),
        (status(BACK_OFF, {"exitCode": 75, "message": TOLD}), PodFault("FetchInterrupted", "the hub has no such model", "spec.model.source")),
        (status(BACK_OFF, {"exitCode": 75, "message": "x"}), PodFault("FetchInterrupted", "x")),
        (status({"waiting": {"reason": "ImagePullBackOff", "message": "no image"}}), PodFault("ImagePullBackOff", "no image")),
        (status({"waiting": {"reason": "PodInitializing"}}), None),
        (status(BACK_OFF, {"exitCode": 1, "message": "Traceback"}), PodFault("EngineExited", "exit status 1: Traceback")),
    ],
)  # fmt: skip
def test_a_fault_of_the_container_is_told_and_its_work_is_none(given: dict[str, Any], fault: PodFault | None) -> None:
    assert readings.fault(given) == fault


def test_memory_is_what_the_killed_container_lacked() -> None:
    found = readings.fault(status(BACK_OFF, {"exitCode": 137, "reason": "OOMKilled"}))
    assert found is not None
    assert (found.reason, found.field) == ("OOMKilled", "spec.resources.memory")


@pytest.mark.parametrize(
    ("given", "fetching", "fetched"),
    [
        (status({"waiting": {"reason": "PodInitializing"}}), False, False),
        (status(RUNNING), True, False),
        (status(BACK_OFF), True, False),
        (status(BACK_OFF, {"exitCode": 75}), True, False),
        (status({"waiting": {"reason": "PodInitializing"}}, {"exitCode": 75}), True, False),
        (status({"terminated": {"exitCode": 75}}), True, False),
        (status({"terminated": {"exitCode": 0}}), False, True),
        ({}, False, False),
    ],
)
def test_a_pod_is_fetching_from_the_first_start_of_the_container_to_its_good_end(
    given: dict[str, Any], fetching: bool, fetched: bool
) -> None:
    metadata = {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}
    read = readings.pod({"metadata": metadata, "status": given})
    assert (read.fetching, read.fetched) == (fetching, fetched)


def pod(fetched: float, size: float = 140 * GB, speed: float | None = 0.27 * GB, **more: Any) -> PodReading:
    reading = FetchReading(int(size), int(fetched), speed)
    return PodReading("p", False, False, 0.0, None, **{"fetching": True, "fetch": reading, **more})


def stated(*pods: PodReading, before: NewCondition | None = None) -> NewCondition | None:
    stored = with_transition_time(before, None, 1, 0.0) if before else None
    found = model_fetch.condition([("abc", one) for one in pods], stored)
    return found[0] if found else None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pod(42.5 * GB), "42 of 140 GB, about 6 minutes left"),
        (pod(0, 3.2e6, 1e5), "0.0 of 3.2 MB, less than a minute left"),
        (pod(4.1 * GB, 8.0 * GB, GB / 60), "4.0 of 8.0 GB, about 4 minutes left"),
        (pod(139.9 * GB, speed=GB), "137 of 140 GB, less than a minute left"),
        (pod(7 * GB, speed=GB / 100), "6 of 140 GB, about 4 hours left"),
        (pod(0, speed=None), "0 of 140 GB"),  # it has only begun
        (pod(140 * GB, speed=0.0), "140 of 140 GB, the last checksums are compared"),
    ],
)
def test_the_message_is_one_that_a_person_can_plan_with(given: PodReading, message: str) -> None:
    assert stated(given) == ("ModelFetched", "False", "Fetching", f"revision abc: {message}")


def test_the_slowest_pod_is_told_of() -> None:
    found = stated(pod(70 * GB), pod(14 * GB), pod(0, fetch=None))
    assert found is not None
    assert found[3] == "revision abc: 14 of 140 GB, about 8 minutes left (the slowest of 3 pods)"


def test_prefill_pods_fetch_the_model_too() -> None:
    spec = parse(spec_of("disaggregated"))
    assert isinstance(spec, Spec)
    name = revision_hash(spec.raw)
    ready = PodReading("d", True, False, 0.0, 0.0, fetched=True)
    reading = RevisionReading(name, 1, (ready,), prefill=(pod(14 * GB),))
    status = Status(stable=name, traffic=(Weight(name, 100),))
    plan = decide(Observation("ns", "chat", "u", 1, spec.raw, status, {name: reading}), 1000.0)
    [found] = [one for one in plan.status.conditions if one.type == "ModelFetched"]
    assert (found.status, found.message) == ("False", f"revision {name}: 14 of 140 GB, about 8 minutes left")


def test_a_fetch_is_shown_in_few_writes() -> None:
    before, writes = None, 0
    for fetched in range(0, 140 * GB, GB // 10):
        found = stated(pod(fetched, speed=(0.2 + fetched % 7 / 100) * GB), before=before)
        writes, before = writes + (found != before), found
    assert 40 <= writes <= 51


def test_a_fetch_that_stands_still_is_told() -> None:
    found = stated(pod(42 * GB, speed=0.0), before=stated(pod(42 * GB)))
    assert found is not None
    assert (found[2], found[3]) == (
        "Stalled", "revision abc: 42 of 140 GB; nothing has arrived for a minute: look at the log of its container fetch",
    )  # fmt: skip


def test_a_fetch_that_has_failed_is_not_fetched() -> None:
    """`kubectl wait --for=condition=ModelFetched` would return in the middle of it."""
    begun = stated(pod(42 * GB))
    fault = PodFault("FetchInterrupted", "the hub does not answer; what has arrived is kept")
    assert stated(pod(0, fetch=None, fault=fault), before=begun) == (
        "ModelFetched", "False", "Stalled", "revision abc: the hub does not answer; what has arrived is kept",
    )  # fmt: skip
    waiting = replace(pod(0), fetching=False, fetch=None)
    assert stated(waiting, before=begun) == begun, "its pod was replaced, and the new one has no node yet"
    assert stated(before=begun) == begun
    assert stated(replace(waiting, fetched=True), before=begun) == (
        "ModelFetched", "True", "Fetched", "the model's files are there, and their checksums are right",
    )  # fmt: skip


def test_afterwards_the_condition_is_true_and_a_service_that_never_fetched_has_none() -> None:
    ready = replace(pod(0), fetching=False, fetch=None, ready=True, fetched=True)
    assert stated(ready) is None
    found = stated(ready, before=stated(pod(42 * GB)))
    assert found is not None
    assert found[:3] == ("ModelFetched", "True", "Fetched")
    assert stated(ready, before=found) == found
    unread = stated(pod(0, fetch=None))
    assert unread == ("ModelFetched", "False", "Fetching", "revision abc: its model is being fetched")


PAGE = "pagefleet_model_bytes 100\npagefleet_model_fetched_bytes 40\npagefleet_model_fetch_bytes_per_second 2\n"


@pytest.mark.parametrize(
    ("page", "reading"),
    [
        (PAGE, FetchReading(100, 40, 2.0)),
        (PAGE.replace(" 40", " 101"), None),
        (PAGE.replace(" 100", " 0"), None),
        (PAGE.replace(" 2", " -2"), None),
        (PAGE.replace(" 2", " NaN"), None),
        (PAGE.replace("pagefleet_model_bytes 100\n", ""), None),
        (PAGE.replace("pagefleet_model_fetch_bytes_per_second 2\n", ""), FetchReading(100, 40, None)),
        ("", None),
    ],
)
def test_a_page_that_cannot_be_true_is_no_reading(page: str, reading: FetchReading | None) -> None:
    assert parse_fetch(page) == reading


@pytest.fixture
async def address() -> Any:
    """A pod that serves the page at the engine's port."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, own_address(), ENGINE_PORT).start()
    yield own_address()
    await runner.cleanup()


@pytest.fixture
async def session() -> Any:
    async with measuring_session() as one:
        yield one


async def test_the_operator_asks_at_the_engine_s_port(address: str, session: aiohttp.ClientSession) -> None:
    assert await EngineReadings(session).fetching(address, ENGINE_PORT, unlimited()) == FetchReading(100, 40, 2.0)
    assert await EngineReadings(session).fetching(own_address(1), ENGINE_PORT, unlimited()) is None
