"""`pagefleet-local demo`, `kind` and `fleet`: bring everything up, play the scenes, take everything down."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Protocol

import openai
import typer

from pagefleet_contract.names import MANAGED_SELECTOR, RECORD_SELECTOR, SYSTEM_NAMESPACE
from pagefleet_local.assets.debian import AssetError
from pagefleet_local.base import paths
from pagefleet_local.base.alone import alone
from pagefleet_local.base.console import CONSOLE
from pagefleet_local.base.hogs import hogs as busy
from pagefleet_local.base.preflight import Refused
from pagefleet_local.commands.errors import FAILED, print_failure, readable_errors
from pagefleet_local.demo.load import Load
from pagefleet_local.demo.narration import Narrator, SceneFailed
from pagefleet_local.demo.scenes import alert, burst, canary, errors, mistakes, promoted, regression, serve
from pagefleet_local.demo.stage import NAME, NAMESPACE, SAMPLE, Stage, own
from pagefleet_local.fleet.install import CHECKOUT, Fleet
from pagefleet_local.fleet.kubectl import KubectlError
from pagefleet_local.kind.cluster import Kind
from pagefleet_local.lifecycle.fleet_up import LocalNode, fleet_up
from pagefleet_local.lifecycle.up import check

SCENES = {
    "serve": serve,
    "mistakes": mistakes,
    "canary": canary,
    "promoted": promoted,
    "errors": errors,
    "regression": regression,
    "alert": alert,
    "burst": burst,
}
INTERRUPTED = 130


class Ground(Protocol):
    """Where the scenes are played: it makes the cluster and removes it."""

    title: str

    def check(self, scenes: list[str]) -> None: ...

    async def up(self, say: Callable[[str], None]) -> Fleet: ...

    async def down(self) -> None: ...

    def leftovers(self) -> list[str]: ...


Keep = Annotated[bool, typer.Option(help="Leave the fleet running afterwards.")]
Only = Annotated[list[str] | None, typer.Option(help=f"Scenes to play: {', '.join(SCENES)}.")]
Hogs = Annotated[
    int, typer.Option(min=0, max=64, help="Busy loops beside the fleet; every check and time limit stays.")
]


def demo(keep: Keep = False, only: Only = None, hogs: Hogs = 0) -> None:
    """Run a real fleet on this machine through its main tasks, then remove it. Exit code 1 when a check fails."""
    with readable_errors(), alone(paths.layout()), busy(hogs):
        _play(LocalNode(keep=keep), keep, only)


def kind(keep: Keep = False, only: Only = None) -> None:
    """Play the same scenes on a cluster made by kind (needs Docker), then remove it. Exit code 1 when a check fails."""
    _play(Kind(), keep, only)


def _play(ground: Ground, keep: bool, only: list[str] | None) -> None:
    unknown = sorted(set(only or ()) - set(SCENES))
    with readable_errors():
        if unknown:
            raise Refused(f"unknown scene: {', '.join(unknown)}; the scenes are {', '.join(SCENES)}")
        names = [name for name in SCENES if only is None or name in only]
        ground.check(names)
        _run(_demo(ground, keep, names))


def fleet() -> None:
    """Start the same fleet with one service and leave it running."""
    with readable_errors(), alone(paths.layout()):
        check(paths.layout())
        _run(_fleet())


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run until the end or an interrupt, which `work` ends by itself: the demo takes everything down."""
    try:
        asyncio.run(_interruptible(work))
    except (SceneFailed, KubectlError, TimeoutError, openai.OpenAIError) as failure:
        print_failure(failure)
        raise typer.Exit(FAILED) from None
    except asyncio.CancelledError:
        CONSOLE.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None


async def _interruptible(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


async def _fleet() -> None:
    narrator = Narrator()
    try:
        installed = await fleet_up(narrator.say)
        if await own(installed.kubectl):
            again = f"kubectl apply -f {shlex.quote(str(SAMPLE))}"
            narrator.say(f"{NAMESPACE}/{NAME} stays as you made it ({again} makes it the sample again)")
        else:
            async with Load(_url(installed)) as load:
                await serve.play(Stage(narrator, installed, load))
    except (SceneFailed, KubectlError, AssetError, OSError, openai.OpenAIError, asyncio.CancelledError):
        narrator.say("What was started may still run; make down removes it.")
        raise
    kubeconfig, programs = map(shlex.quote, (str(installed.kubectl.kubeconfig), str(CHECKOUT / ".venv/bin")))
    narrator.say(f"\nexport KUBECONFIG={kubeconfig} PATH={programs}:$PATH")
    narrator.say(f"kubectl get isvc -n {NAMESPACE};  pagefleet status {NAME} -n {NAMESPACE}")
    narrator.say(f"OpenAI base_url: {_url(installed)}   (make down removes everything)")


async def _demo(ground: Ground, keep: bool, names: list[str]) -> None:
    narrator = Narrator()
    try:
        narrator.scene(1, ground.title)
        installed = await ground.up(narrator.say)
        await _show_node(narrator, installed)
        async with Load(_url(installed)) as load:
            stage = Stage(narrator, installed, load)
            for number, name in enumerate(names, 2):
                narrator.scene(number, SCENES[name].TITLE)
                await SCENES[name].play(stage)
        if not keep:
            narrator.scene(len(names) + 2, "Everything is deleted; nothing is left behind")
            await _delete(narrator, installed)
    finally:
        narrator.quiet()
        if not keep:
            await ground.down()
    if not keep:
        narrator.check(not ground.leftovers(), "no process, container, mount, address, rule or file is left")
    narrator.say(f"every check of the demo holds; {narrator.elapsed:.0f} s")


async def _show_node(narrator: Narrator, installed: Fleet) -> None:
    for arguments in (("get", "nodes", "-o", "wide"), ("get", "pods", "-n", SYSTEM_NAMESPACE)):
        narrator.command(f"kubectl {' '.join(arguments)}")
        narrator.output((await installed.kubectl.run(*arguments)).out)


async def _delete(narrator: Narrator, installed: Fleet) -> None:
    """Delete the services as a user does: the objects that the operator made must go with their owner."""
    narrator.command(f"kubectl delete isvc --all -n {NAMESPACE}")
    await installed.kubectl.run("delete", "isvc", "--all", "-n", NAMESPACE, "--timeout=60s")
    command = ("delete", "controllerrevisions", "-n", NAMESPACE, "-l", RECORD_SELECTOR)
    narrator.command(f"kubectl {' '.join(command)}")  # what is known of them stays for a week otherwise
    await installed.kubectl.run(*command)
    for kind in ("deployments", "services", "poddisruptionbudgets", "pods"):
        selector = MANAGED_SELECTOR
        await installed.kubectl.run(
            "wait", "--for=delete", kind, "-n", NAMESPACE, "-l", selector, "--timeout=150s", check=False
        )
        narrator.check(
            not await installed.kubectl.list(kind, NAMESPACE, selector), f"no {kind} of the service are left"
        )


def _url(installed: Fleet) -> str:
    return f"{installed.gateway}/{NAMESPACE}/{NAME}/v1"
