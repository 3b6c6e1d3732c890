"""A pod whose node vanishes: it is in a network of its own, and from a moment on its packets are dropped without an answer.

Run as a program in a fresh network namespace (`in_own_network`), with the name of a scene and the service's
firstTokenTimeout. Prints the scene's answers as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from support.gateway.fleet import STABLE, Engine, Fleet, running, until
from support.namespaces import unshare

OUR_ADDRESS, FAR_ADDRESS, FAR_PORT = "10.98.0.1", "10.98.0.2", 8000
BODY = {"model": "smol", "messages": [{"role": "user", "content": "hello"}]}
MANY, LIMIT_SECONDS = 8, 120.0


@dataclass(frozen=True)
class Answer:
    """What a client got; `status` 0: nothing. `whole`: the answer came to its end. `told`: an error said that it did not."""

    status: int
    seconds: float
    whole: bool
    told: bool


def in_own_network(scene: str, first_token_seconds: float | None) -> dict[str, list[Answer]]:
    """Play a scene in a fresh network namespace."""
    words = [*unshare("--net"), sys.executable, "-m", "support.gateway.black_hole", scene]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
    ended = subprocess.run(
        [*words, json.dumps(first_token_seconds)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    return {when: [Answer(**one) for one in some] for when, some in json.loads(ended.stdout).items()}


def ip(*words: str, inside: int | None = None) -> None:
    """Run ip here, or in the network of a process."""
    enter = [] if inside is None else ["nsenter", f"--net=/proc/{inside}/ns/net"]
    subprocess.run([*enter, "ip", *words], check=True)


class FarPod:
    """An engine in a network of its own, joined with ours by one cable."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def vanish(self) -> None:
        """Drop all packets from now on: nobody has the address any more, and no neighbour is asked for it."""
        ip("addr", "del", f"{FAR_ADDRESS}/24", "dev", "far", inside=self.process.pid)


@asynccontextmanager
async def far_pod(options: dict[str, object]) -> AsyncIterator[FarPod]:
    """Start the engine and connect it."""
    words = ["unshare", "--net", sys.executable, "-m", "support.gateway.black_hole", "engine", json.dumps(options)]
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the far engine has no pipes")
    await process.stdout.readline()  # it is in its own network
    ip("link", "set", "lo", "up")
    ip("link", "add", "near", "type", "veth", "peer", "name", "far")
    ip("link", "set", "far", "netns", str(process.pid))
    ip("addr", "add", f"{OUR_ADDRESS}/24", "dev", "near")
    ip("link", "set", "near", "up")
    for change in (
        ("link", "set", "lo", "up"),
        ("addr", "add", f"{FAR_ADDRESS}/24", "dev", "far"),
        ("link", "set", "far", "up"),
    ):
        ip(*change, inside=process.pid)
    far = json.loads(subprocess.run(
        ["nsenter", f"--net=/proc/{process.pid}/ns/net", "ip", "-j", "link", "show", "far"],
        check=True, capture_output=True, text=True,
    ).stdout)[0]["address"]  # fmt: skip
    ip("neigh", "replace", FAR_ADDRESS, "lladdr", far, "dev", "near", "nud", "permanent")
    process.stdin.write(b"serve\n")
    await process.stdout.readline()  # it listens
    try:
        yield FarPod(process)
    finally:
        process.kill()
        await process.wait()


async def ask(fleet: Fleet, stream: bool, streaming: asyncio.Semaphore | None = None) -> Answer:
    """Ask once. `streaming` is released when the first line of the answer has come."""
    begun, status, text, told = time.monotonic(), 0, b"", False
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            url = f"{fleet.url}/team/chat/v1/chat/completions"
            async with fleet.http.post(url, json=BODY | {"stream": stream}) as response:
                status = response.status
                async for line in response.content:
                    if not text and streaming is not None:
                        streaming.release()
                    text += line
    except (aiohttp.ClientError, TimeoutError) as error:
        told = isinstance(error, aiohttp.ClientError)
    whole = b"[DONE]" in text or bool(text and not stream)
    return Answer(status, time.monotonic() - begun, whole, told or b'"error"' in text)


SCENES: dict[str, dict[str, object]] = {
    "new": {},  # the gateway has no connection to the pod yet
    "idle": {},  # it has some, and no request is in them
    "busy": {"first_token": 60.0},  # the pod computes prompts
    "streaming": {"between": 60.0, "headers": "first"},  # it answers
}


async def play(name: str, first_token_seconds: float | None) -> dict[str, list[Answer]]:
    """Ask two pods, of which one vanishes. Return the answers to the requests at that time, and to some afterwards."""
    async with running() as fleet, far_pod(SCENES[name]) as far:
        pod = Engine(FAR_ADDRESS, STABLE, port=FAR_PORT).pod()
        fleet.state.put_pod(pod)
        await until(lambda: pod in fleet.serving())
        await fleet.engine(STABLE)
        fleet.serve((STABLE, 100), first_token_seconds=first_token_seconds)
        if name == "idle":
            await asyncio.gather(*(ask(fleet, False) for _ in range(MANY)))
        if name in ("new", "idle"):
            far.vanish()
        begun = asyncio.Semaphore(0)
        asking = [asyncio.create_task(ask(fleet, name != "idle" or number % 2 == 0, begun)) for number in range(MANY)]
        if name == "streaming":
            for _ in range(MANY):
                await begun.acquire()
        if name in ("busy", "streaming"):
            await until(lambda: 1 < fleet.gateway.ledger.in_flight(pod) == sum(not one.done() for one in asking))
            far.vanish()
        meanwhile = list(await asyncio.gather(*asking))
        await until(lambda: fleet.gateway.ledger.ejected(pod, time.monotonic()))
        return {
            "meanwhile": meanwhile,
            "afterwards": list(await asyncio.gather(*(ask(fleet, True) for _ in range(MANY)))),
        }


async def serve(options: dict[str, object]) -> None:
    """Be the far engine."""
    sys.stdout.write("unshared\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    engine = Engine(FAR_ADDRESS, STABLE, port=FAR_PORT, **options)  # type: ignore[arg-type]
    await engine.start()
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        asyncio.run(serve(json.loads(sys.argv[2])))
    else:
        answers = asyncio.run(play(sys.argv[1], json.loads(sys.argv[2])))
        sys.stdout.write(json.dumps({when: [vars(answer) for answer in some] for when, some in answers.items()}) + "\n")
