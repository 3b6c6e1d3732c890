"""Protects `pagefleet bench` against a real HTTP server that streams: times as a user meets them (no coordinated
omission), every kind of failure by its name, and the files and exit codes that the load-test Job stands on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from pagefleet_cli.bench.profile import Lengths, Planned, Profile, plan
from pagefleet_cli.bench.requests import Endpoint
from pagefleet_cli.bench.result import quantile, values
from pagefleet_cli.bench.run import Run, run
from pagefleet_contract import sketch

TOKEN_SECONDS = 0.01
SLOW_SECONDS = 2.0  # longer than a busy machine delays a quick answer
Before = Callable[[int], Awaitable[web.StreamResponse | None]]


@dataclass
class Server:
    """An OpenAI-compatible server. `before` is awaited with the request's number, and may answer in its stead."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    before: Before | None = None
    finish: bool = True
    said: str = "content"  # the field of a delta that holds a token

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        answer = await self.before(len(self.bodies)) if self.before else None
        if answer is not None:
            return answer
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(body["max_tokens"]):
            if number:
                await asyncio.sleep(TOKEN_SECONDS)
            await self._event(response, {"choices": [self._choice(request, "word ")]})
        if self.finish:
            await self._event(response, {"choices": [{**self._choice(request, ""), "finish_reason": "length"}]})
            usage = {"prompt_tokens": 11, "completion_tokens": body["max_tokens"]}
            await self._event(response, {"choices": [], "usage": usage})
            await response.write(b"data: [DONE]\n\n")
        return response

    def _choice(self, request: web.Request, text: str) -> dict[str, Any]:
        return {"index": 0, **({"delta": {self.said: text}} if "chat" in request.path else {"text": text})}

    @staticmethod
    async def _event(response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    own, app = Server(), web.Application()
    app.router.add_get("/v1/models", own.models)
    app.router.add_post("/v1/completions", own.complete)
    app.router.add_post("/v1/chat/completions", own.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    own.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield own
    await runner.cleanup()


def load(requests: int, rate: float, tokens: int = 5) -> list[Planned]:
    return plan(Profile(requests, rate, Lengths(8, 0, 8), Lengths(tokens, 0, tokens)))


async def measured(server: Server, planned: list[Planned], timeout: float = 10.0, **endpoint: Any) -> Run:
    return await run(Endpoint(server.url, "tiny", **endpoint), planned, timeout, asyncio.Event(), lambda *_: None)


@pytest.mark.parametrize("chat", [False, True])
async def test_what_was_planned_is_sent_and_timed(server: Server, chat: bool) -> None:
    measured_run = await measured(server, load(30, 100), chat=chat)
    assert [sample.error for sample in measured_run.samples] == [""] * 30
    assert {(sample.output_tokens, sample.prompt_tokens) for sample in measured_run.samples} == {(5, 11)}
    assert all(body["stream_options"] == {"include_usage": True} and body["ignore_eos"] for body in server.bodies)
    assert all(("messages" in body) == chat for body in server.bodies)
    for sample in measured_run.samples:
        assert sample.ttft is not None
        assert sample.tpot is not None
        assert sample.tpot >= 0.8 * TOKEN_SECONDS  # a late first read shortens it
        assert sample.e2e >= sample.ttft + 3.2 * TOKEN_SECONDS


@pytest.mark.parametrize("said", ["reasoning_content", "reasoning"])
async def test_a_model_that_thinks_is_timed_from_its_first_thought(server: Server, said: str) -> None:
    """Thoughts are tokens that the client sees, and usage counts them: the gateway takes the first one for the first token too."""
    server.said = said
    measured_run = await measured(server, load(10, 100), chat=True)
    for sample in measured_run.samples:
        assert sample.ttft is not None
        assert sample.tpot is not None
        assert sample.tpot >= 0.8 * TOKEN_SECONDS


async def test_a_stall_is_met_by_everyone_who_would_have_come(server: Server) -> None:
    """One stall of a second at 20 requests/s: some 10 requests wait longer than half of it. A closed loop would see one."""
    stalled_until = 0.0

    async def stall(number: int) -> None:
        nonlocal stalled_until
        if number == 10:
            stalled_until = time.monotonic() + 1.0
        await asyncio.sleep(max(0.0, stalled_until - time.monotonic()))

    server.before = stall
    measured_run = await measured(server, load(60, 20))
    slow = [value for value in values(measured_run.samples, "ttft") if value > 0.5]
    assert 5 <= len(slow) <= 20
    p95 = quantile(values(measured_run.samples, "ttft"), 0.95)
    assert p95 is not None
    assert p95 > 0.5


async def test_latency_counts_from_the_intended_start(server: Server) -> None:
    """A client that stands still for 0.4 s sends late, and the requests it held back say so in their latency."""
    stalled = False

    def progress(ended: int, flying: int) -> None:
        nonlocal stalled
        if ended >= 5 and not stalled:
            stalled = True
            time.sleep(0.4)

    measured_run = await run(Endpoint(server.url, "tiny"), load(60, 60, 1), 10.0, asyncio.Event(), progress)
    late = [sample for sample in measured_run.samples if sample.late > 0.2]
    assert len(late) >= 5
    assert all(sample.ttft is not None and sample.ttft > sample.late for sample in late)


async def test_a_slow_server_does_not_slow_the_arrivals_down(server: Server) -> None:
    """50 requests at 50/s to a server that takes 1 s for each: all are sent within the planned second."""

    async def slow(number: int) -> None:
        await asyncio.sleep(1.0)

    server.before = slow
    planned = load(50, 50, 1)
    measured_run = await measured(server, planned)
    assert measured_run.seconds < planned[-1].at + 2.0
    assert min(values(measured_run.samples, "ttft")) >= 1.0


async def failing(server: Server, answer: Callable[[], web.Response] | None, **options: Any) -> set[str]:
    async def before(number: int) -> web.StreamResponse | None:
        if answer is None:
            await asyncio.sleep(5)
            return None
        return answer()

    server.before = before
    return kinds(await measured(server, load(4, 100), **options))


def kinds(measured_run: Run) -> set[str]:
    return {sample.error for sample in measured_run.samples}


async def test_failures_have_names(server: Server) -> None:
    def event(text: str) -> Callable[[], web.Response]:
        return lambda: web.Response(text=text, content_type="text/event-stream")

    assert await failing(server, lambda: web.Response(status=503)) == {"HTTP 503"}
    assert await failing(server, lambda: web.Response(status=429)) == {"HTTP 429"}
    assert await failing(server, event('data: {"error": {"message": "no"}}\n\n')) == {"error in the stream"}
    numbers = ("[5]", "NaN", "1e999", "-7", "1" * 400)
    usage = ('{"usage": [5]}', *(f'{{"usage": {{"completion_tokens": {number}}}}}' for number in numbers))
    for wrong in ("{not json", "5", '{"choices": [7]}', "x" * 1_000_000, "[" * 20_000, *usage):
        assert await failing(server, event(f"data: {wrong}\n\n")) == {"malformed event"}
    assert await failing(server, None, timeout=0.2) == {"timeout"}
    server.before, server.finish = None, False
    assert kinds(await measured(server, load(4, 100))) == {"truncated stream"}
    server.url = "http://127.0.0.1:1/v1"
    assert kinds(await measured(server, load(4, 100))) == {"no connection"}


async def test_a_stop_keeps_what_has_ended(server: Server) -> None:
    stop = asyncio.Event()

    def progress(ended: int, flying: int) -> None:
        if ended >= 5:
            stop.set()

    measured_run = await run(Endpoint(server.url, "tiny"), load(500, 50), 10.0, stop, progress)
    assert measured_run.cut
    assert 5 <= len(measured_run.samples) < 100


async def command(*arguments: str, home: Path) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from pagefleet_cli.main import app; app()", "bench", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "XDG_DATA_HOME": str(home)},
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_load_test_job_s_command(server: Server, tmp_path: Path) -> None:
    """As the operator calls it: URL without /v1, profile as JSON, result of at most 4096 bytes in the contract's form."""
    result = tmp_path / "termination-log"
    profile = json.dumps({"requests": 20, "rate": 50, "outputTokens": {"median": 4, "sigma": 0.5, "max": 8}, "seed": 1})
    arguments = ("--url", server.url.removesuffix("/v1"), "--model", "tiny", "--profile", profile)
    code, out, err = await command(*arguments, "--result-file", str(result), home=tmp_path)
    assert (code, err) == (0, "")
    document = json.loads(result.read_bytes())
    assert len(result.read_bytes()) <= 4096
    assert {"requests", "errors", "seconds", "outputTokensPerSecond", "ttft", "tpot", "e2e"} == set(document)
    assert (document["requests"], document["errors"]) == (20, 0)
    p50 = sketch.quantile({int(bucket): count for bucket, count in document["ttft"].items()}, 0.5)
    assert p50 is not None
    assert 0 < p50 < 1
    assert "TTFT" in out


async def test_an_endpoint_that_fails_is_in_the_result_of_the_load_test(server: Server, tmp_path: Path) -> None:
    """This server has no embeddings. The load runs all the same, and the operator judges."""
    result = tmp_path / "termination-log"
    profile = json.dumps({"requests": 5, "rate": 50, "endpoints": ["/v1/models", "/v1/embeddings"]})
    code, out, _ = await command(
        "--url", server.url, "--profile", profile, "--result-file", str(result), home=tmp_path
    )  # fmt: skip
    document = json.loads(result.read_bytes())
    assert (code, document["requests"], document["errors"]) == (0, 5, 0)
    assert document["failedEndpoints"] == {"/v1/embeddings": "HTTP 404: 404: Not Found"}
    assert "/v1/embeddings" in out


async def test_a_dead_server_gives_a_result_and_exit_code_1(tmp_path: Path) -> None:
    result = tmp_path / "result"
    arguments = ("--url", "http://127.0.0.1:1", "--model", "tiny", "--requests", "3", "--rate", "100")
    code, _, err = await command(*arguments, "--result-file", str(result), home=tmp_path)
    assert code == 1
    assert "requests failed: see the table of errors" in err
    assert json.loads(result.read_bytes())["errors"] == 3
    code, _, err = await command("--url", "http://127.0.0.1:1", home=tmp_path)  # asks for the model's name
    assert code == 1
    assert "does not answer" in err
    assert "Traceback" not in err


async def test_runs_are_saved_compared_and_drawn(server: Server, tmp_path: Path) -> None:
    arguments = ("--url", server.url, "--requests", "60", "--rate", "50", "--output-tokens", "2", "--save", "week")
    code, out, _ = await command(*arguments, home=tmp_path)
    assert code == 0
    assert "saved in" in out

    async def slow(number: int) -> None:
        await asyncio.sleep(SLOW_SECONDS)

    server.before = slow
    picture = tmp_path / "plot.svg"
    code, out, err = await command(*arguments, "--compare", "week", "--plot", str(picture), home=tmp_path)
    assert (code, err) == (0, "")
    assert "slower" in next(line for line in out.splitlines() if line.startswith("TTFT p50:"))
    assert "<svg" in picture.read_text()
    assert len(list((tmp_path / "pagefleet/bench/week").glob("*.json"))) == 2


async def test_a_load_and_reports_of_other_tools_go_through_the_command(server: Server, tmp_path: Path) -> None:
    """The config names server, model and API; what it cannot tell is named; the written reports are what is compared with."""
    config = tmp_path / "config.yml"
    config.write_text(
        f"load:\n  stages:\n  - {{rate: 20, duration: 1}}\n  - {{rate: 40, duration: 1}}\n  interval: 0\n"
        f"api: {{type: chat, streaming: true}}\n"
        f"server: {{base_url: {server.url}, model_name: tiny, ignore_eos: false}}\n"
        "data:\n  type: random\n  input_distribution: {type: fixed, mean: 7}\n"
        "  output_distribution: {type: uniform, min: 2, max: 4}\nmetrics: {type: prometheus}\n"
    )
    arguments = ["--profile", f"@{config}"]
    reports = ["--guidellm-report", str(tmp_path / "g.json"), "--inference-perf-report", str(tmp_path / "perf")]
    code, out, err = await command(*arguments, *reports, home=tmp_path)
    assert code == 0
    assert "60 of 60 requests" in out
    assert "--profile: not carried over: metrics.type" in err
    assert "--guidellm-report: not measured" in err
    assert "--inference-perf-report: not measured" in err
    assert {("messages" in body, body["model"], "ignore_eos" in body) for body in server.bodies} == {
        (True, "tiny", False)
    }
    assert {body["max_tokens"] for body in server.bodies} == {2, 3, 4}

    async def slow(number: int) -> None:
        await asyncio.sleep(SLOW_SECONDS)

    server.before = slow
    for report in (tmp_path / "g.json", tmp_path / "perf"):
        code, out, err = await command(*arguments, "--compare", f"@{report}", home=tmp_path)
        assert code == 0
        assert "slower" in next(line for line in out.splitlines() if line.startswith("TTFT p50:"))
        assert "errors: 0 of 60 then, 0 of 60 now" in out
    code, out, err = await command(*arguments, "--rate", "3", home=tmp_path)
    assert code == 1
    assert "cannot override a profile with stages" in err


async def test_a_run_is_not_made_where_it_could_not_be_saved(server: Server, tmp_path: Path) -> None:
    """A load of half an hour is too expensive to be lost for a name with a blank."""
    missing = tmp_path / "missing/result"
    for option, text in (("--save", "my run"), ("--result-file", str(missing))):
        code, _, err = await command(
            "--url", server.url, "--requests", "5", "--rate", "50", option, text, home=tmp_path
        )
        assert code == 1
        assert "is not a valid name" in err or "there is no folder" in err
        assert server.bodies == []


async def test_a_file_that_cannot_be_written_takes_no_result_away(server: Server, tmp_path: Path) -> None:
    """A full disk or a folder in the way shows only when the load is over: the numbers are on the screen, and the others are written."""
    taken, key, result = tmp_path / "plot.svg", tmp_path / "key", tmp_path / "result"
    taken.mkdir()
    key.write_bytes(b"\xff\xfe")
    few = ("--url", server.url, "--requests", "5", "--rate", "50")
    files = ("--plot", str(taken), "--guidellm-report", str(taken), "--result-file", str(result))
    code, out, err = await command(*few, *files, "--save", "week", home=tmp_path)
    assert code == 1
    assert "TTFT" in out and "saved in" in out and result.is_file()
    assert "--plot: " in err and "--guidellm-report: " in err and "Traceback" not in err
    code, _, err = await command(*few, "--api-key-file", str(key), home=tmp_path)
    assert code == 1
    assert "--api-key-file: " in err and "Traceback" not in err
