"""Real engine processes as pods of a gateway under test, and clients that judge what they are streamed: what the tests of
engines that die share. No test here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from support.engine.api_process import NAME, command, free_port
from support.engine.failing_runner import environment
from support.gateway.fleet import STABLE, Fleet, until

from pagefleet_gateway.cluster.state import Pod

PATIENCE = 120.0
BODY = {"model": NAME, "ignore_eos": True, "temperature": 0, "logit_bias": {"0": -100, "1": -100, "2": -100}}
AT_ONCE = 2  # requests that an engine runs; the others wait in it for their first token


@dataclass
class Client:
    """One streamed request and all that its client has seen of it. `truth` is the text it must be given."""

    prompt: str
    truth: str
    status: int = 0
    text: str = ""
    finish: str | None = None
    tokens: int | None = None
    done: bool = False
    error: str = ""  # an error event's code, or how the transfer broke

    async def ask(self, fleet: Fleet) -> None:
        """Returns when the answer has ended, however it did."""
        body = {**BODY, "prompt": self.prompt, "max_tokens": len(self.truth), "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        url = f"{fleet.url}/team/chat/v1/completions"
        try:
            async with fleet.http.post(url, json=body, timeout=aiohttp.ClientTimeout(total=PATIENCE)) as response:
                self.status = response.status
                async for line in response.content:
                    self._read(line.decode().strip())
        except (aiohttp.ClientError, TimeoutError) as error:
            self.error = self.error or type(error).__name__

    def _read(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            event = json.loads(line[len("data: ") :])
            self.error = (event.get("error") or {}).get("code", self.error)
            self.tokens = (event.get("usage") or {}).get("completion_tokens", self.tokens)
            for choice in event.get("choices", ()):
                self.text += choice["text"]
                self.finish = choice["finish_reason"] or self.finish
        elif line.startswith("{"):
            self.error = json.loads(line)["error"]["code"]

    @property
    def whole(self) -> bool:
        """Everything was answered, once, and nothing else was said."""
        ended = (self.finish, self.done, self.error, self.tokens) == ("length", True, "", len(self.truth))
        return ended and self.status == 200 and self.text == self.truth

    @property
    def cut(self) -> bool:
        """It ended too early after it had begun, its client was told, and what came before was right and came once."""
        told = bool(self.error) and not self.done and self.finish is None
        return told and self.status == 200 and self.truth.startswith(self.text)


@dataclass
class Enginepod:
    """One `pagefleet-engine` with its two processes, alone in a process group."""

    pod: Pod
    process: asyncio.subprocess.Process

    @property
    def engine_pid(self) -> int:
        own = self.process.pid
        return int(Path(f"/proc/{own}/task/{own}/children").read_text().split()[0])

    async def ended(self) -> int:
        """Its exit status, when it has one; nothing of it is left."""
        status = await asyncio.wait_for(self.process.wait(), PATIENCE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return status


@dataclass
class Pods:
    """The engines behind a fleet's gateway: `serving` those that get requests, `next` one more on its way."""

    fleet: Fleet
    model: str
    folder: Path
    first: str = ""  # Python that runs before each API process
    serving: list[Enginepod] = field(default_factory=list)
    started: list[Enginepod] = field(default_factory=list)
    next: asyncio.Task[Enginepod] | None = None

    async def join(self) -> None:
        """One more engine gets requests; another one begins to start."""
        coming = self.next or self.prepare()
        engine = await coming
        self.next = None
        self.fleet.state.put_pod(engine.pod)
        await until(lambda: engine.pod in self.fleet.serving())
        self.serving.append(engine)

    def prepare(self) -> asyncio.Task[Enginepod]:
        self.next = asyncio.create_task(self._start())
        return self.next

    async def _start(self) -> Enginepod:
        number, port = len(self.started) + 1, free_port()
        words = command(self.model, port, "--num-pages=2048", f"--max-num-seqs={AT_ONCE}", first=self.first)
        variables = {
            **environment(),
            "OMP_NUM_THREADS": "1",
            "PAGEFLEET_TERMINATION_LOG": str(self.folder / f"{number}.termination"),
        }
        with (self.folder / f"{number}.log").open("w") as log:
            process = await asyncio.create_subprocess_exec(
                *words, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        engine = Enginepod(Pod(f"u{number}", f"p{number}", "team", "chat", STABLE, f"127.0.0.1:{port}"), process)
        self.started.append(engine)

        async def ready() -> bool:
            if process.returncode is not None:
                raise RuntimeError(f"an engine ended with {process.returncode}: {self.folder / f'{number}.log'}")
            with contextlib.suppress(aiohttp.ClientError):
                async with self.fleet.http.get(f"http://127.0.0.1:{port}/ready") as response:
                    return response.status == 200
            return False

        await until(ready, PATIENCE)
        return engine

    def leave(self, engine: Enginepod) -> None:
        """Its object is gone: it gets no new requests."""
        self.serving.remove(engine)
        self.fleet.state.remove_pod(engine.pod.uid)

    async def stop(self) -> None:
        if self.next is not None:
            self.next.cancel()
            await asyncio.gather(self.next, return_exceptions=True)
        for engine in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine.process.pid, signal.SIGKILL)
            await engine.process.wait()


@asynccontextmanager
async def pods(fleet: Fleet, model: str, folder: Path, first: str = "", count: int = 2) -> AsyncIterator[Pods]:
    """Engines that serve."""
    made = Pods(fleet, model, folder, first)
    try:
        for _ in range(count):
            await made.join()
        fleet.serve((STABLE, 100))
        yield made
    finally:
        await made.stop()


async def truths(engine: Enginepod, fleet: Fleet, longest: int, count: int) -> dict[str, str]:
    """Prompts with what an engine that does nothing else answers: a character for each token."""
    found: dict[str, str] = {}
    chance = random.Random(22)
    while len(found) < count:
        prompt = "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(12))
        body = {**BODY, "prompt": prompt, "max_tokens": longest}
        async with fleet.http.post(f"http://{engine.pod.address}/v1/completions", json=body) as response:
            answer = await response.json()
        found[prompt] = answer["choices"][0]["text"]
        if len(found[prompt]) != longest:
            raise ValueError(f"{len(found[prompt])} characters for {longest} tokens: {answer}")
    return found


def clients(truth: Mapping[str, str], shortest: int, count: int, chance: random.Random) -> list[Client]:
    """Requests for the first tokens of some of `truth`."""
    prompts = [chance.choice(list(truth)) for _ in range(count)]
    return [Client(prompt, truth[prompt][: chance.randint(shortest, len(truth[prompt]))]) for prompt in prompts]
