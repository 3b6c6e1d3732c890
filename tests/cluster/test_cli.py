"""Protects `pagefleet` (and `kubectl pagefleet`) against the real API server and the real operator: every action is
answered, the exit codes are right, names complete, and errors are reported without a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import sys
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from support.cluster.plane import Plane
from support.sample_service import sample

from pagefleet_cli.base import cluster as cluster_module
from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.rollout.actions import Action, Written, await_answer
from pagefleet_local.base.certificates import Authority
from pagefleet_local.fleet.kubectl import Result, until
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAMESPACE = "default"
COMMAND = (sys.executable, "-c", "from pagefleet_cli.main import app; app(prog_name='pagefleet')")


async def pagefleet(*arguments: str, **environment: str) -> Result:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, **environment},
    )  # fmt: skip
    out, err = await process.communicate()
    result = Result(process.returncode or 0, out.decode(), err.decode())
    assert "Traceback" not in result.text
    return result


async def cli(plane: Plane, *arguments: str) -> Result:
    return await pagefleet(*arguments, "-n", NAMESPACE, "--kubeconfig", str(plane.kubectl.kubeconfig))


async def drawn(plane: Plane, *arguments: str) -> str:
    """Return the text that a terminal of 160 columns shows."""
    ours, theirs = pty.openpty()
    options = ("-n", NAMESPACE, "--kubeconfig", str(plane.kubectl.kubeconfig))
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, *options, stdin=asyncio.subprocess.DEVNULL, stdout=theirs,
        stderr=asyncio.subprocess.DEVNULL, env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"},
    )  # fmt: skip
    os.close(theirs)

    def read() -> bytes:
        whole = b""
        with contextlib.suppress(OSError):  # Linux ends a terminal without writers by EIO
            while part := os.read(ours, 65536):
                whole += part
        return whole

    whole = await asyncio.to_thread(read)
    os.close(ours)
    await process.wait()
    return whole.decode()


async def applied(plane: Plane, name: str, *args: str) -> None:
    document = sample()
    document["metadata"] = {"name": name, "namespace": NAMESPACE}
    document["spec"]["engine"]["args"] = list(args)
    document["spec"]["rollout"] = {
        **document["spec"].get("rollout", {}),
        "steps": [{"weight": 10, "hold": "1h"}, {"pause": {}}],
    }
    await plane.kubectl.apply(document)


async def view(plane: Plane, name: str) -> View:
    document = await plane.kubectl.get("isvc", name, NAMESPACE)
    assert document is not None
    return View(document)


async def phase(plane: Plane, name: str, expected: str) -> View:
    async def there() -> bool:
        state = await view(plane, name)
        return (
            state.phase == expected
            and state.status.get("observedGeneration") == state.document["metadata"]["generation"]
        )

    await until(there, timeout=60, what=f"{name} is {expected}", interval=0.3)
    return await view(plane, name)


async def canary(plane: Plane, name: str) -> View:
    await applied(plane, name)
    await phase(plane, name, "Idle")
    await applied(plane, name, "--max-num-seqs=4")
    return await phase(plane, name, "Step")


async def test_a_rollout_is_watched_explained_and_acted_on(plane: Plane) -> None:
    state = await canary(plane, "acted")
    old, new = state.stable, state.canary
    shown = await cli(plane, "rollout", "status", "acted")
    assert shown.code == 0
    assert "[>] 1: 10 % (hold 1h)" in shown.out
    assert new in shown.out
    late = await cli(plane, "rollout", "status", "acted", "--watch", "--timeout", "1")
    assert late.code == 3
    assert "default/acted | Step | step 1 of 2: 10 % (hold 1h), held" in late.out
    live = await drawn(plane, "rollout", "status", "acted", "--watch", "--timeout", "2")
    assert live.count("[>] 1: 10 % (hold 1h)") >= 2  # drawn again in place
    assert "\x1b[1A" in live
    diff = await cli(plane, "rollout", "diff", "acted")
    assert diff.out.startswith(f"--- {old}\n+++ {new}\n")
    assert "+  - --max-num-seqs=4" in diff.out

    paused = await cli(plane, "rollout", "pause", "acted")
    assert (paused.code, paused.err) == (0, "")
    assert "acted: the rollout is paused" in paused.out
    again = await cli(plane, "rollout", "pause", "acted")
    assert again.code == 1
    assert "refused: the rollout is paused already" in again.err
    why = await cli(plane, "rollout", "why", "acted")
    assert f"CanaryStarted: Revision {new}" in why.out
    assert "Now: It is paused by action" in why.out
    machine = json.loads((await cli(plane, "rollout", "why", "acted", "-o", "json")).out)
    assert machine["decisions"][-1]["kind"] == "ActionRefused"

    assert (await cli(plane, "rollout", "resume", "acted")).code == 0
    assert (await cli(plane, "rollout", "skip", "acted")).code == 0
    await phase(plane, "acted", "Paused")
    assert "waits for a person" in (await cli(plane, "rollout", "why", "acted")).out
    assert (await cli(plane, "rollout", "promote", "acted")).code == 0
    done = await cli(plane, "rollout", "status", "acted", "--watch", "--timeout", "60")
    assert done.code == 0, done.text
    assert (await view(plane, "acted")).stable == new

    history = await cli(plane, "rollout", "history", "acted")
    assert "engine.args" in history.out
    assert history.out.index(old) < history.out.index(new)
    undone = await cli(plane, "rollout", "undo", "acted", "--to", old[:4])
    assert undone.code == 0, undone.text
    await phase(plane, "acted", "RolledBack")
    back = await cli(plane, "rollout", "status", "acted", "--watch", "--timeout", "60")
    assert back.code == 1
    assert (await view(plane, "acted")).stable == old
    assert f"Revision {new} was rolled back (Undone" in (await cli(plane, "rollout", "why", "acted")).out


async def test_abort_and_retry_and_what_is_written(plane: Plane) -> None:
    state = await canary(plane, "aborted")
    spec = state.document["spec"]
    assert (await cli(plane, "rollout", "abort", "aborted")).code == 0
    rolled = await phase(plane, "aborted", "RolledBack")
    assert rolled.status["rejected"][-1]["reason"] == "Aborted"
    assert rolled.document["spec"] == spec
    asked = json.loads(rolled.document["metadata"]["annotations"]["pagefleet.io/action"])
    assert asked["action"] == "abort"
    assert asked["id"] == rolled.status["action"]["id"]
    sent = await cli(plane, "rollout", "retry", "aborted", "--no-wait")
    assert sent.code == 0
    assert "retry requested" in sent.out
    await phase(plane, "aborted", "Step")
    unknown = await cli(plane, "rollout", "undo", "aborted", "--to", "zzzz")
    assert unknown.code == 1
    assert "no stored revision" in unknown.err


async def test_an_operator_that_does_not_answer_is_not_waited_for_for_ever(plane: Plane) -> None:
    await applied(plane, "silent")
    own = Cluster(Target(NAMESPACE, plane.kubectl.kubeconfig))
    nothing = await asyncio.to_thread(await_answer, own, "silent", Written("never-written", Action.SKIP, ""), 1.0)
    assert nothing is None


async def test_fleets_are_shown_to_people_and_machines(plane: Plane) -> None:
    await applied(plane, "shown")
    await phase(plane, "shown", "Idle")
    assert "shown" in (await cli(plane, "status")).out
    wide = await cli(plane, "status", "shown", "-o", "wide")
    assert "PHASE" in wide.out
    assert "CONDITION" in wide.out
    assert json.loads((await cli(plane, "status", "-o", "json")).out)["kind"] == "InferenceServiceList"
    assert yaml.safe_load((await cli(plane, "status", "shown", "-o", "yaml")).out)["metadata"]["name"] == "shown"
    every = await pagefleet("status", "-A", "--kubeconfig", str(plane.kubectl.kubeconfig))
    assert "default" in every.out


async def test_kubectl_finds_the_plugin_hands_its_flags_on_and_completes(plane: Plane, tmp_path: Path) -> None:
    await applied(plane, "plugged")
    scripts = {"kubectl-pagefleet": "main import app as run", "kubectl_complete-pagefleet": "completion import run"}
    for name, imported in scripts.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\nfrom pagefleet_cli.{imported}\nrun()\n")
        (tmp_path / name).chmod(0o755)

    async def kubectl(*arguments: str) -> str:
        path = f"{tmp_path}:{os.environ['PATH']}"
        process = await asyncio.create_subprocess_exec(
            str(plane.kubectl.binary), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PATH": path, "KUBECONFIG": str(plane.kubectl.kubeconfig)},
        )  # fmt: skip
        return (await process.communicate())[0].decode()

    shown = await kubectl("pagefleet", "status", "plugged", "-n", NAMESPACE, "-o", "json")
    assert json.loads(shown)["metadata"]["name"] == "plugged"
    assert (await kubectl("__complete", "pagefleet", "rollout", "why", "plug")).split() == ["plugged", ":4"]
    assert "rollout" in (await kubectl("__complete", "pagefleet", "")).split()


async def test_a_service_is_measured_through_the_gateway_s_path(plane: Plane) -> None:
    """A server in the gateway's place sees what a user of the service would send there."""
    await applied(plane, "loaded")
    requests: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append((request.path, (await request.json())["model"]))
        events = 'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
        return web.Response(text=events, content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    load = ("bench", "--service", "default/loaded", "--requests", "2", "--rate", "50")
    kubeconfig = ("--kubeconfig", str(plane.kubectl.kubeconfig))
    done = await pagefleet(*load, "--url", f"http://127.0.0.1:{runner.addresses[0][1]}", *kubeconfig)
    await runner.cleanup()
    assert done.code == 0, done.text
    assert requests == [("/default/loaded/v1/completions", "smollm2")] * 2
    lost = await pagefleet(*load, *kubeconfig)
    assert lost.code == 1
    assert "pagefleet-system/pagefleet-gateway: not found; give it with --url" in lost.err


async def test_service_names_and_revisions_complete(plane: Plane) -> None:
    await applied(plane, "complete-me")
    state = await phase(plane, "complete-me", "Idle")

    async def completed(words: str) -> list[str]:
        output = await pagefleet(
            _PAGEFLEET_COMPLETE="complete_bash", COMP_WORDS=words,
            COMP_CWORD=str(len(words.split(" ")) - 1), KUBECONFIG=str(plane.kubectl.kubeconfig),
        )  # fmt: skip
        return output.out.split()

    assert await completed("pagefleet status complete-") == ["complete-me"]
    assert await completed("pagefleet rollout abort comp") == ["complete-me"]
    assert await completed("pagefleet rollout undo complete-me --to ") == [state.stable]
    assert "rollout" in await completed("pagefleet ro")


async def test_what_goes_wrong_is_named(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await applied(plane, "chatty")
    near = await cli(plane, "status", "chaty")
    assert near.code == 1
    assert "did you mean chatty" in near.err
    elsewhere = await pagefleet("status", "chatty", "-n", "kube-system", "--kubeconfig", str(plane.kubectl.kubeconfig))
    assert "it exists in default" in elsewhere.err

    context = await pagefleet("status", "--context", "nope", "--kubeconfig", str(plane.kubectl.kubeconfig))
    assert "--context: the kubeconfig has no 'nope'" in context.err
    assert "there is no file" in (await pagefleet("status", "--kubeconfig", "/nowhere")).err

    dead = yaml.safe_load(plane.kubectl.kubeconfig.read_text())
    dead["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "dead").write_text(yaml.safe_dump(dead))
    silent = await pagefleet("status", "--kubeconfig", str(tmp_path / "dead"))
    assert silent.code == 1
    assert "the API server https://127.0.0.1:1 does not answer" in silent.err
    assert "refused" in silent.err

    authority = Authority(plane.layout.pki)
    server = f"https://127.0.0.1:{plane.layout.api_port}"
    stranger = authority.kubeconfig(tmp_path / "stranger", server, authority.issue("stranger", "stranger"))
    refused = await pagefleet("status", "-n", NAMESPACE, "--kubeconfig", str(stranger))
    assert refused.code == 1
    assert 'forbidden: inferenceservices.pagefleet.io is forbidden: User "stranger" cannot list' in refused.err

    monkeypatch.setattr(cluster_module, "GROUP", "nowhere.pagefleet.io")
    with pytest.raises(CommandError, match="the CRD is not installed"):
        await asyncio.to_thread(Cluster(Target(NAMESPACE, plane.kubectl.kubeconfig)).services)
