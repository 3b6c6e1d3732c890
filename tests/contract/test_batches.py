"""`/v1/files` and `/v1/batches` as OpenAI's own client uses them, through a real gateway, with HTTP servers as engine pods.

Protects that a batch's lines are answered once each, also where the server is killed in the midst of them; that they reach
engines as background work and give way to others; that a cancelled batch's lines stop; that clients see their own files and
batches only, with their own quota.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import openai
import pytest
import yaml
from support.engine.api_process import free_port
from support.gateway.batches import desk, line
from support.gateway.fleet import STABLE, running, until

PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/batches.md").read_text()
ONE, TWO, OWN = "sk-one-0123456789", "sk-two-0123456789", "sk-batches-0123456789"


async def test_openais_client_does_its_batch_work(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        engine = await here.fleet.engine(STABLE, token_report="usage")
        here.fleet.serve((STABLE, 100))
        await here.start_server()
        client = here.client()
        batch = await here.submit(client, map(line, range(40)), metadata={"night": "1"})
        assert (batch.object, batch.status, batch.completion_window) == ("batch", "validating", "24h")
        assert batch.expires_at == batch.created_at + 24 * 3600
        done = await here.ended(client, batch)
        assert done.status == "completed" and done.error_file_id is None and done.metadata == {"night": "1"}
        assert done.request_counts is not None
        assert done.request_counts.model_dump() == {"total": 40, "completed": 40, "failed": 0}
        assert done.usage is not None and (done.usage.input_tokens, done.usage.output_tokens) == (280, 120)
        times = (done.in_progress_at, done.finalizing_at, done.completed_at)
        assert all(one is not None for one in times) and list(times) == sorted(times)  # type: ignore[type-var]
        rows = await here.rows(client, done.output_file_id)
        assert {row["custom_id"] for row in rows} == {f"line-{number}" for number in range(40)} and len(rows) == 40
        assert all(row["error"] is None and row["response"]["status_code"] == 200 for row in rows)
        assert rows[0]["response"]["body"]["choices"][0]["message"]["content"] == "one two three"
        assert len(engine.requests) == 40
        assert {one.headers["priority"] for one in engine.requests} == {"u=7"}
        assert {batch.id async for batch in await client.batches.list(limit=1)} == {batch.id}
        files = {file.id: file.purpose async for file in await client.files.list()}
        assert files == {batch.input_file_id: "batch", done.output_file_id: "batch_output"}
        assert (await client.files.delete(batch.input_file_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(batch.input_file_id)
        with pytest.raises(openai.ConflictError, match="is completed and cannot be cancelled"):
            await client.batches.cancel(batch.id)


async def test_the_client_of_the_how_to_page_prints_the_answers(tmp_path: Path) -> None:
    (asked,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "requests.jsonl").write_text(asked)
    async with desk(tmp_path) as here:
        await here.fleet.engine(STABLE)
        here.fleet.serve((STABLE, 100))
        await here.start_server()
        variables = {**os.environ, "OPENAI_BASE_URL": f"{here.fleet.url}/team/chat/v1", "OPENAI_API_KEY": "none"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, cwd=tmp_path, env=variables, stdout=subprocess.PIPE
        )
        printed, _ = await process.communicate()
    assert process.returncode == 0
    first, row = printed.decode().splitlines()[:2]
    assert first.startswith("completed BatchRequestCounts(completed=1, failed=0, total=1")
    assert json.loads(row)["custom_id"] == "a"


async def test_lists_go_on_where_the_page_before_ended(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.fleet.engine(STABLE)
        here.fleet.serve((STABLE, 100))
        await here.start_server()
        client = here.client()
        made = [(await here.submit(client, [line(number)])).id for number in range(5)]
        assert sorted([one.id async for one in await client.batches.list(limit=2)]) == sorted(made)
        first = await client.batches.list(limit=2)
        assert len(first.data) == 2 and first.has_more
        with pytest.raises(openai.BadRequestError, match="`limit` must be from 1 to 100"):
            await client.batches.list(limit=101)


async def test_the_path_of_a_service_leads_its_lines_there(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.fleet.engine(STABLE)
        here.fleet.serve((STABLE, 100))
        await here.start_server()
        client = here.client(path="/team/chat")
        done = await here.ended(client, await here.submit(client, [line(1, model="any-adapter")]))
        assert done.status == "completed"

        def asked() -> set[object]:
            return {one["path"] for one in here.fleet.lines if "chat/completions" in str(one["path"])}

        await until(lambda: bool(asked()))  # the log line comes after the answer
        assert asked() == {"/team/chat/v1/chat/completions"}


async def test_a_killed_server_goes_on_and_answers_no_line_twice(tmp_path: Path) -> None:
    async with desk(tmp_path, max_in_flight=4) as here:
        engine = await here.fleet.engine(STABLE, first_token=0.02)
        here.fleet.serve((STABLE, 100))
        await here.start_process()
        client = here.client()
        batch = await here.submit(client, map(line, range(150)))
        for kills in range(1, 4):
            await until(lambda: len(engine.requests) >= 35 * kills)  # noqa: B023
            await here.kill()
            with pytest.raises(openai.InternalServerError, match="its files and batches are kept"):
                await client.batches.retrieve(batch.id)
            await here.start_process()
        done = await here.ended(client, batch)
        rows = await here.rows(client, done.output_file_id)
        assert done.status == "completed" and done.error_file_id is None
        assert Counter(row["custom_id"] for row in rows) == {f"line-{number}": 1 for number in range(150)}
        # Only what was in flight at a kill is computed again.
        assert 150 <= len(engine.requests) <= 150 + 3 * here.settings.max_in_flight


async def test_a_second_server_does_not_start_in_the_same_folder(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.start_process()
        here.settings = replace(here.settings, port=free_port(), internal_port=free_port())
        with pytest.raises(AssertionError, match="ended at its start"):
            await here.start_process()
        assert "two would answer each line twice" in (tmp_path / "batches.log").read_text()


async def test_lines_that_fail_are_in_the_error_file_and_the_others_in_the_output(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.fleet.engine(STABLE)
        here.fleet.serve((STABLE, 100))
        await here.start_server()
        client = here.client()
        done = await here.ended(client, await here.submit(client, [line(1, model="absent"), line(2, model="absent")]))
        assert done.status == "completed" and done.output_file_id is None
        assert done.request_counts is not None and done.request_counts.failed == 2
        rows = await here.rows(client, done.error_file_id)
        assert {row["response"]["status_code"] for row in rows} == {404}
        assert {row["response"]["body"]["error"]["code"] for row in rows} == {"model_not_found"}


async def test_lines_wait_for_an_engine_that_is_busy_and_others_requests_do_not(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        engine = await here.fleet.engine(STABLE)
        here.fleet.serve((STABLE, 100))
        await here.start_server()
        engine.waiting = 3  # requests of other clients wait in it

        async def refuses_background() -> bool:
            status, body, headers = await here.fleet.chat(headers={"priority": "u=7"})
            return status == 429 and "no_idle_capacity" in str(body) and headers["retry-after"] == "1"

        await until(refuses_background)
        before = len(engine.requests)
        client = here.client()
        batch = await here.submit(client, map(line, range(20)))

        def refused() -> int:
            return sum("chat/completions" in str(one["path"]) and one["code"] == 429 for one in here.fleet.lines)

        seen = refused()
        await until(lambda: refused() >= seen + 2)
        assert len(engine.requests) == before
        assert (await here.fleet.chat())[0] == 200  # a client's request goes to the same engine at once
        current = await client.batches.retrieve(batch.id)
        assert current.status == "in_progress" and current.request_counts is not None
        assert current.request_counts.completed == 0
        engine.waiting = 0
        done = await here.ended(client, batch)
        assert done.status == "completed" and len(engine.requests) == before + 21


async def test_a_cancelled_batch_stops_and_keeps_what_was_answered(tmp_path: Path) -> None:
    async with desk(tmp_path, max_in_flight=2) as here:
        engine = await here.fleet.engine(STABLE, first_token=0.05)
        here.fleet.serve((STABLE, 100))
        await here.start_server()
        client = here.client()
        batch = await here.submit(client, map(line, range(500)))
        await until(lambda: len(engine.requests) >= 10)
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        done = await here.ended(client, batch, seconds=10)
        sent = len(engine.requests)
        assert done.status == "cancelled" and done.cancelled_at is not None and done.error_file_id is None
        rows = await here.rows(client, done.output_file_id)
        assert done.request_counts is not None
        assert 5 <= len(rows) == done.request_counts.completed <= sent < 100
        assert (await here.fleet.chat())[0] == 200
        assert len(engine.requests) == sent + 1


async def test_a_client_sees_its_own_files_and_batches_only_and_its_quota_counts(tmp_path: Path) -> None:
    keys, own = tmp_path / "keys.yaml", tmp_path / "key"
    entries = [
        {"name": "one", "key": ONE, "requestsPerMinute": 6},
        {"name": "two", "key": TWO, "services": ["team/other"]},
        {"name": "batches", "key": OWN, "actsForClients": True},
    ]
    keys.write_text(yaml.safe_dump(entries))
    own.write_text(OWN + "\n")
    async with desk(tmp_path, gateway={"api_keys_file": keys}, api_keys_file=keys, key_file=own) as here:
        engine = await here.fleet.engine(STABLE)
        here.fleet.serve((STABLE, 100))
        await here.start_server()
        one, two = here.client(ONE), here.client(TWO)
        for key in ("sk-wrong-0123456789", OWN):
            with pytest.raises((openai.AuthenticationError, openai.PermissionDeniedError)):
                await here.client(key).files.list()
        batch = await here.submit(one, map(line, range(8)))
        for found in (two.batches.retrieve(batch.id), two.files.content(batch.input_file_id)):
            with pytest.raises(openai.NotFoundError):
                await found
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            await two.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        assert [one async for one in await two.batches.list()] == [] == [one async for one in await two.files.list()]
        # The second client may not ask this service: each of its lines fails, and the first one's do not.
        other = await here.ended(two, await here.submit(two, [line(1)]))
        assert other.request_counts is not None and other.request_counts.failed == 1
        with pytest.raises(openai.PermissionDeniedError, match="not allowed to use team/chat"):
            await here.submit(here.client(TWO, "/team/chat"), [line(1)])
        await until(lambda: len(engine.requests) == 6)  # the quota of the first client
        await until(lambda: any(one["code"] == 429 and one.get("key") == "one" for one in here.fleet.lines))
        assert {request.headers["x-pagefleet-client"] for request in engine.requests} == {"one"}
        assert not any({"authorization", "x-api-key"} & set(request.headers) for request in engine.requests)
        assert (await one.batches.retrieve(batch.id)).status == "in_progress"
        stored = b"".join(path.read_bytes() for path in here.settings.folder.rglob("*") if path.is_file())
        assert not any(key.encode() in stored for key in (ONE, TWO, OWN))


async def test_nobody_gets_in_where_the_gateway_demands_keys_and_the_server_has_none(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(yaml.safe_dump([{"name": "one", "key": ONE}]))
    async with desk(tmp_path, gateway={"api_keys_file": keys}) as here:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await here.start_server()
        assert here.server is not None and "the gateway demands API keys" in here.server.access.reason
        with pytest.raises(openai.InternalServerError, match="the gateway demands API keys"):
            await here.client(ONE).files.list()


async def test_a_gateway_without_a_batches_server_says_so(tmp_path: Path) -> None:
    async with running() as fleet:
        for path in ("/v1/files", "/v1/batches/batch_1", "/team/chat/v1/files"):
            async with fleet.http.get(fleet.url + path) as response:
                assert response.status == 404
                assert (await response.json())["error"]["code"] == "batches_not_installed"
