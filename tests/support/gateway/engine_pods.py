"""Real engine processes as pods of a gateway under test, and clients that judge their streams. The tests of engines that
die share this. No test here."""

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

TIMEOUT_SECONDS = 120.0
BODY = {"model": NAME, "ignore_eos": True, "temperature": 0, "logit_bias": {"0": -100, "1": -100, "2": -100}}
AT_ONCE = 2  # requests that an engine runs; the others wait in it for their first token


@dataclass
class Client:
    """One streamed request and everything that its client has received. `truth` is the expected text."""

    prompt: str
    truth: str
    status: int = 0
    text: str = ""
    finish: str | None = None
    tokens: int | None = None
    done: bool = False
    error: str = ""  # an error event's code, or how the transfer broke

    async def ask(self, fleet: Fleet) -> None:
        """Send the request, and return when the answer has ended, in whatever way."""
        body = {**BODY, "prompt": self.prompt, "max_tokens": len(self.truth), "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        url = f"{fleet.url}/team/chat/v1/completions"
        try:
            async with fleet.http.post(
                url, json=body, timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            ) as response:
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
        """Whether the whole answer came, once, and nothing else."""
        ended = (self.finish, self.done, self.error, self.tokens) == ("length", True, "", len(self.truth))
        return ended and self.status == 200 and self.text == self.truth

    @property
    def cut(self) -> bool:
        """Whether the answer ended too early after it had begun, with an error for the client, and its text so far is right."""
        reported = bool(self.error) and not self.done and self.finish is None
        return reported and self.status == 200 and self.truth.startswith(self.text)


@dataclass
class EnginePod:
    """One `pagefleet-engine` with its two processes, alone in a process group."""

    pod: Pod
    process: asyncio.subprocess.Process

    @property
    def engine_pid(self) -> int:
        own = self.process.pid
        return int(Path(f"/proc/{own}/task/{own}/children").read_text().split()[0])

    async def ended(self) -> int:
        """Wait for the engine's end, remove its other process, and return its exit status."""
        status = await asyncio.wait_for(self.process.wait(), TIMEOUT_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return status


@dataclass
class Pods:
    """The engines behind a fleet's gateway: `serving` those that get requests, `next` one more that starts."""

    fleet: Fleet
    model: str
    folder: Path
    first: str = ""  # Python that runs before each API process
    flags: tuple[str, ...] = ()
    serving: list[EnginePod] = field(default_factory=list)
    started: list[EnginePod] = field(default_factory=list)
    next: asyncio.Task[EnginePod] | None = None

    async def join(self) -> None:
        """Let one more engine get requests, and start another one."""
        coming = self.next or self.prepare()
        engine = await coming
        self.next = None
        self.fleet.state.put_pod(engine.pod)
        await until(lambda: engine.pod in self.fleet.serving())
        self.serving.append(engine)

    def prepare(self) -> asyncio.Task[EnginePod]:
        self.next = asyncio.create_task(self._start())
        return self.next

    async def _start(self) -> EnginePod:
        number, port = len(self.started) + 1, free_port()
        words = command(
            self.model, port, "--num-pages=2048", f"--max-num-seqs={AT_ONCE}", *self.flags, first=self.first
        )
        variables = {
            **environment(),
            "OMP_NUM_THREADS": "1",
            "PAGEFLEET_TERMINATION_LOG": str(self.folder / f"{number}.termination"),
        }
        with (self.folder / f"{number}.log").open("w") as log:
            process = await asyncio.create_subprocess_exec(
                *words, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        engine = EnginePod(Pod(f"u{number}", f"p{number}", "team", "chat", STABLE, f"127.0.0.1:{port}"), process)
        self.started.append(engine)

        async def ready() -> bool:
            if process.returncode is not None:
                raise RuntimeError(f"an engine ended with {process.returncode}: {self.folder / f'{number}.log'}")
            with contextlib.suppress(aiohttp.ClientError):
                async with self.fleet.http.get(f"http://127.0.0.1:{port}/ready") as response:
                    return response.status == 200
            return False

        await until(ready, TIMEOUT_SECONDS)
        return engine

    def leave(self, engine: EnginePod) -> None:
        """Remove the engine's pod object, so that it gets no new requests."""
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
async def pods(
    fleet: Fleet, model: str, folder: Path, first: str = "", count: int = 2, flags: tuple[str, ...] = ()
) -> AsyncIterator[Pods]:
    """Run engines that serve."""
    made = Pods(fleet, model, folder, first, flags)
    try:
        for _ in range(count):
            await made.join()
        fleet.serve((STABLE, 100))
        yield made
    finally:
        await made.stop()


async def truths(engine: EnginePod, fleet: Fleet, longest: int, count: int) -> dict[str, str]:
    """Return prompts with the answers of an engine that has no other request: a character for each token."""
    truth: dict[str, str] = {}
    chance = random.Random(22)
    while len(truth) < count:
        prompt = "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(12))
        body = {**BODY, "prompt": prompt, "max_tokens": longest}
        async with fleet.http.post(f"http://{engine.pod.address}/v1/completions", json=body) as response:
            answer = await response.json()
        truth[prompt] = answer["choices"][0]["text"]
        if len(truth[prompt]) != longest:
            raise ValueError(f"{len(truth[prompt])} characters for {longest} tokens: {answer}")
    return truth


def clients(truth: Mapping[str, str], shortest: int, count: int, chance: random.Random) -> list[Client]:
    """Make requests for the first tokens of some of `truth`."""
    prompts = [chance.choice(list(truth)) for _ in range(count)]
    return [Client(prompt, truth[prompt][: chance.randint(shortest, len(truth[prompt]))]) for prompt in prompts]
