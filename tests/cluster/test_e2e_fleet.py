"""Protects the main path end to end on the real node: the shipped images and manifests serve a model; a killed engine
pod is restarted while traffic goes elsewhere; a sleeping spare is woken for a replica that ends, and sleeps again; what the
documentation tells a newcomer to type works; kubectl logs, exec and port-forward work; a pod's end cuts no stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import openai
import pytest
import pytest_asyncio
from support import docs_blocks
from support.rbac import events, granted, role_use

from pagefleet_local.base import paths
from pagefleet_local.base.preflight import Refused
from pagefleet_local.demo.load import Load
from pagefleet_local.demo.monitoring import Monitoring
from pagefleet_local.demo.narration import Narrator
from pagefleet_local.demo.scenes import serve
from pagefleet_local.demo.scenes.serve import QUESTION
from pagefleet_local.demo.stage import NAME, NAMESPACE, Stage, sample
from pagefleet_local.fleet.access import NodePorts
from pagefleet_local.fleet.install import Fleet, install
from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View
from pagefleet_local.kind import plan
from pagefleet_local.lifecycle.fleet_up import LocalNode

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(fleet: Fleet, narrator: Narrator) -> AsyncIterator[Stage]:
    async with Load(f"{fleet.gateway}/{NAMESPACE}/{NAME}/v1") as load:
        stage = Stage(narrator, fleet, load)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await fleet.kubectl.apply(namespace)
        document = sample()
        document["spec"]["scaling"]["min"] = 2
        await fleet.kubectl.apply(document)
        await stage.watch(lambda v: v.is_true("Ready") and ready(v) == 2, timeout=240, what="two ready replicas")
        yield stage
        await fleet.kubectl.run("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=180s")


async def test_the_commands_of_the_documentation_run(fleet: Fleet, tmp_path: Path) -> None:
    """The tutorial, then the other pages that need a fleet; before the tests below, which bring a service of their own."""
    pages = docs_blocks.of("fleet")
    assert "docs/tutorial.md" in pages
    for page in sorted(pages, key=lambda page: (page != "docs/tutorial.md", page)):
        folder = tmp_path / page.replace("/", "-")
        folder.mkdir()
        await asyncio.to_thread(docs_blocks.play, pages[page], folder, {"KUBECONFIG": str(fleet.kubectl.kubeconfig)})
    await fleet.kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true", "--timeout=180s")


def ready(view: View) -> int:
    return sum(entry.get("ready", 0) for entry in view.status.get("revisions") or [])


async def test_the_openai_client_gets_the_same_answer_whole_and_streamed(stage: Stage) -> None:
    question = [{"role": "user", "content": QUESTION}]
    async with openai.AsyncOpenAI(base_url=stage.url, api_key="unused", max_retries=0) as client:
        whole = await client.chat.completions.create(model="smollm2", messages=question, max_tokens=24, temperature=0)
        stream = await client.chat.completions.create(
            model="smollm2", messages=question, max_tokens=24, temperature=0, stream=True
        )
        pieces = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
    assert "Paris" in (whole.choices[0].message.content or "")
    assert "".join(pieces) == whole.choices[0].message.content


async def test_a_killed_engine_is_restarted_and_traffic_goes_elsewhere(stage: Stage) -> None:
    pods = await stage.kubectl.list("pods", NAMESPACE, f"pagefleet.io/service={NAME}")
    victim = pods[0]["metadata"]["name"]
    # PID 1 ignores signals it has no handler for from inside its own namespace, SIGKILL included: end its child.
    kill = (
        "import os, signal; me = os.getpid()\n"
        "for entry in os.listdir('/proc'):\n"
        "    if entry.isdigit() and int(entry) not in (1, me): os.kill(int(entry), signal.SIGKILL)"
    )
    await stage.kubectl.run("exec", "-n", NAMESPACE, victim, "--", "python3", "-c", kill, check=False)

    async def restarted() -> bool:
        pod = await stage.kubectl.get("pod", victim, NAMESPACE)
        states = pod["status"]["containerStatuses"] if pod else []
        return bool(states) and states[0]["restartCount"] >= 1

    async def unready() -> bool:
        pod = await stage.kubectl.get("pod", victim, NAMESPACE)
        states = pod["status"]["containerStatuses"] if pod else []
        return bool(states) and not states[0]["ready"]

    async def not_ready_or_restarted() -> bool:
        return await unready() or await restarted()

    await until(not_ready_or_restarted, timeout=60, what="the kubelet sees the engine's death", interval=0.2)
    while not await restarted() or await unready():
        sample = await stage.load.one(8)
        assert sample.status == 200, sample
        assert not sample.truncated, sample


async def test_a_pod_that_is_deleted_ends_its_streams_first(stage: Stage) -> None:
    streams = [asyncio.create_task(stage.load.one(200)) for _ in range(4)]
    pods = await stage.kubectl.list("pods", NAMESPACE, f"pagefleet.io/service={NAME}")
    await stage.kubectl.run("delete", "pod", "-n", NAMESPACE, pods[0]["metadata"]["name"], "--wait=false")
    for answer in await asyncio.gather(*streams):
        assert (answer.status, answer.finish) == (200, "length"), answer


async def test_a_sleeping_spare_is_woken_for_a_replica_that_ends_and_sleeps_again(stage: Stage) -> None:
    document = sample()
    document["spec"]["scaling"] |= {"min": 1, "max": 1, "warmSpares": 1}
    await stage.kubectl.apply(document)
    await stage.watch(lambda v: ready(v) == 1 and asleep(v) == 1, timeout=240, what="a replica and a sleeping spare")
    (spare,) = await stage.kubectl.list("pods", NAMESPACE, "pagefleet.io/spare")
    address = spare["status"]["podIP"]
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}:8000/is_sleeping") as response:
        assert await response.json() == {"is_sleeping": True}
    pods = await stage.kubectl.list("pods", NAMESPACE, f"pagefleet.io/service={NAME},!pagefleet.io/spare")
    own = [
        pod for pod in pods if "deletionTimestamp" not in pod["metadata"]
    ]  # the second one of before may still drain
    streams = [asyncio.create_task(stage.load.one(200)) for _ in range(4)]
    await stage.kubectl.run("delete", "pod", "-n", NAMESPACE, own[0]["metadata"]["name"], "--wait=false")
    await stage.watch(lambda v: awake(v) == 1, timeout=60, what="the spare serves")
    served = await stage.load.one(8)
    assert (served.status, served.finish) == (200, "length"), served
    await stage.watch(lambda v: ready(v) == 1 and asleep(v) == 1, timeout=240, what="the spare sleeps again")
    for answer in await asyncio.gather(*streams):
        assert (answer.status, answer.finish) == (200, "length"), answer
    document["spec"]["scaling"] |= {"min": 2, "max": 2, "warmSpares": 0}
    await stage.kubectl.apply(document)


def asleep(view: View) -> int:
    return int((view.status.get("spares") or {}).get("asleep", 0))


def awake(view: View) -> int:
    return int((view.status.get("spares") or {}).get("awake", 0))


async def test_logs_exec_and_port_forward(stage: Stage) -> None:
    # The tests before this one killed and deleted pods: wait until both replicas are whole again.
    await stage.watch(lambda v: ready(v) == 2, timeout=120, what="two ready replicas")
    pods = await stage.kubectl.list("pods", NAMESPACE, f"pagefleet.io/service={NAME}")
    serving = [
        p for p in pods if "deletionTimestamp" not in p["metadata"] and p["status"]["containerStatuses"][0]["ready"]
    ]
    pod = serving[0]["metadata"]["name"]
    assert (await stage.kubectl.run("logs", "-n", NAMESPACE, pod, "--tail=5")).out.strip()
    user = await stage.kubectl.run("exec", "-n", NAMESPACE, pod, "--", "python3", "-c", "import os; print(os.getuid())")
    assert user.out.strip() == "65532"
    written = await stage.kubectl.run(
        "exec", "-n", NAMESPACE, pod, "--", "python3", "-c", "open('/x', 'w')", check=False
    )
    assert "Read-only file system" in written.text
    for program in ("sh", "bash", "apt-get", "pip"):
        done = await stage.kubectl.run("exec", "-n", NAMESPACE, pod, "--", program, "--version", check=False)
        assert done.code, program
        assert "not found" in done.text, program
    process = await asyncio.create_subprocess_exec(
        str(stage.kubectl.binary), "--kubeconfig", str(stage.kubectl.kubeconfig),
        "port-forward", "-n", NAMESPACE, f"pod/{pod}", "18000:8000",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        if process.stdout is None:
            raise RuntimeError("no pipe")
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        assert b"127.0.0.1:18000" in line
        async with aiohttp.ClientSession() as session, session.get("http://127.0.0.1:18000/health") as response:
            assert response.status == 200
    finally:
        process.kill()
        await process.communicate()


async def test_kubectl_get_isvc_shows_the_columns(stage: Stage) -> None:
    table = (await stage.kubectl.run("get", "isvc", "-n", NAMESPACE)).out
    header = table.splitlines()[0].split()
    expected = ["NAME", "READY", "STABLE", "CANARY", "WEIGHT", "VERDICT", "GUARDED", "SLO", "REPLICAS", "AGE"]
    assert header == expected


async def test_the_gateway_asks_for_what_its_role_names_and_for_nothing_else(stage: Stage) -> None:
    """By the audit log of all the tests above (row 28; the operator's Role: test_roles)."""
    role = granted("base/gateway-rbac.yaml")
    record = role_use(events(paths.layout().logs), "system:serviceaccount:pagefleet-system:pagefleet-gateway", role)
    assert record.requests
    assert sorted(record.forbidden) == []
    assert sorted(record.used - role) == []
    # A watch is in the log when it has ended; the gateway's outlast this file.
    assert sorted({grant for grant in role - record.used if grant[2] != "watch"}) == []


async def test_the_scenes_hold_through_node_ports_and_a_proxy(narrator: Narrator, fleet: Fleet) -> None:
    """As on kind, where no Service's address is this machine's: ports of the node, and `kubectl proxy` for pods' metrics."""
    access = NodePorts(paths.layout().node_ip, gateway=plan.GATEWAY[0], operator=plan.OPERATOR[0])
    try:
        there = await install(fleet.kubectl, narrator.say, overlay="kind", access=access)
        assert f":{plan.GATEWAY[0]}" in there.gateway
        async with Load(f"{there.gateway}/{NAMESPACE}/{NAME}/v1") as load:
            await serve.play(Stage(narrator, there, load))
        async with Monitoring(there, narrator) as monitoring:
            await monitoring.scraping()
        async with aiohttp.ClientSession() as session, session.get(f"{there.operator}/readyz") as response:
            assert response.status == 200
    finally:
        await access.close()


async def test_the_demo_leaves_a_fleet_that_runs_already_alone(fleet: Fleet) -> None:
    """Its end deletes the services and takes the cluster down, also what somebody else has in them."""
    with pytest.raises(Refused, match=r"a fleet runs here already.* run `make down` first"):
        LocalNode().check([])
    LocalNode(keep=True).check([])
