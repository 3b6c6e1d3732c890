"""Protects what clients read of a batch, a file or an upload that is wrong: the line, the field and what is allowed; and that
an upload that breaks off leaves nothing behind."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import openai
import pytest
from support.gateway.batches import desk, jsonl, line
from support.gateway.fleet import STABLE, until


@pytest.mark.parametrize(
    ("lines", "code", "number", "param"),
    [
        ([line(1), line(2) | {"url": "/v1/embeddings"}], "invalid_url", 2, "url"),
        ([line(1), line(1)], "duplicate_custom_id", 2, "custom_id"),
        ([line(1, stream=True)], "invalid_stream", 1, "body.stream"),
        ([line(1), line(2, model="other")], "mismatched_model", 2, "body.model"),
    ],
)
async def test_a_wrong_file_fails_the_batch_with_the_line_and_the_field(
    tmp_path: Path, lines: list[object], code: str, number: int, param: str
) -> None:
    async with desk(tmp_path) as here:
        await here.start_server()
        client = here.client()
        done = await here.ended(client, await here.submit(client, lines))
        assert done.status == "failed" and done.failed_at is not None and done.output_file_id is None
        assert done.errors is not None and done.errors.data is not None
        (error,) = done.errors.data
        assert (error.code, error.line, error.param) == (code, number, param) and param in str(error.message)


async def test_wrong_requests_name_the_field(tmp_path: Path) -> None:
    async with desk(tmp_path, max_file_bytes=100_000, max_client_bytes=150_000, max_client_batches=1) as here:
        engine = await here.fleet.engine(STABLE, first_token=30)
        here.fleet.serve((STABLE, 100))
        await here.start_server()
        client = here.client()
        file = await client.files.create(file=("a.jsonl", jsonl([line(1)])), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="`purpose` must be 'batch'"):
            await client.files.create(file=("a.jsonl", b"x"), purpose="assistants")
        with pytest.raises(openai.BadRequestError, match=r"expires_after.seconds` must be from 3600 to 2592000"):
            await client.files.create(
                file=("a.jsonl", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
            )
        # Larger than a request to an engine may be (65,536 bytes at this gateway), but not than a file.
        large = await client.files.create(file=("b.jsonl", b"x" * 90_000), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="larger than 100000 bytes"):
            await client.files.create(file=("c.jsonl", b"x" * 100_001), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="may have 150000 bytes"):
            await client.files.create(file=("d.jsonl", b"x" * 70_000), purpose="batch")
        assert {one.id async for one in await client.files.list()} == {file.id, large.id}
        asked = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        for name, value, message in (
            ("endpoint", "/v1/moderations", "`endpoint` must be one of"),
            ("completion_window", "1h", "`completion_window` must be 24h"),
            ("metadata", {"a": 1}, "`metadata` must be"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                await client.batches.create(**(asked | {name: value}))  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="`window` is no field"):
            await client.batches.create(**asked, extra_body={"window": 1})  # type: ignore[arg-type]
        batch = await client.batches.create(**asked)  # type: ignore[arg-type]
        await until(lambda: len(engine.requests) == 1)
        with pytest.raises(openai.ConflictError, match=f"{batch.id} reads the file"):
            await client.files.delete(file.id)
        with pytest.raises(openai.RateLimitError, match="1 batches of this client have not ended"):
            await client.batches.create(**asked)  # type: ignore[arg-type]
        await client.batches.cancel(batch.id)
        await here.ended(client, batch)
        assert (await client.files.delete(file.id)).deleted


async def test_an_upload_that_is_none_or_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.start_server()
        url, incoming = f"{here.fleet.url}/v1/files", here.settings.folder / "incoming"
        many = aiohttp.FormData({f"field-{number}": "x" for number in range(20)} | {"file": io.BytesIO(b"x")})
        for data, headers, code in (
            (many, {}, "too_many_fields"),
            (b"{}", {"content-type": "application/json"}, "invalid_content_type"),
            (b"nothing", {"content-type": "multipart/form-data; boundary=a"}, "invalid_multipart"),
            (aiohttp.FormData({"purpose": "x" * 2000, "file": io.BytesIO(b"x")}), {}, "invalid_value"),
        ):
            async with here.fleet.http.post(url, data=data, headers=headers) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (400, code)
        _, writer = await asyncio.open_connection("127.0.0.1", here.settings.port)
        head = b"POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-type: multipart/form-data; boundary=a\r\ncontent-length: 9999\r\n\r\n"
        writer.write(head + b'--a\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 5000)
        await until(lambda: any(incoming.iterdir()))
        writer.close()
        await writer.wait_closed()
        await until(lambda: not any(incoming.iterdir()))
        assert [one async for one in await here.client().files.list()] == []


async def test_an_upload_whose_bytes_are_not_what_its_headers_say_is_a_400(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.start_server()
        part = b'--a\r\ncontent-disposition: form-data; name="file"; filename="\xe9.jsonl"\r\n%s\r\nx\r\n--a--\r\n'
        purpose = b'--a\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        kind = {"content-type": "multipart/form-data; boundary=a"}
        for data, headers in (
            (purpose + part % b"no header\r\n", {}),
            (purpose + part % (b"x: " + b"y" * 20_000 + b"\r\n"), {}),
            (purpose + part % b"", {"content-encoding": "gzip"}),
        ):
            async with here.fleet.http.post(
                f"{here.fleet.url}/v1/files", data=data, headers=kind | headers
            ) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_body")
        # A name in Latin-1 is none of UTF-8, in which the server writes what it knows of a file.
        async with here.fleet.http.post(
            f"{here.fleet.url}/v1/files", data=purpose + part % b"", headers=kind
        ) as response:
            assert (response.status, (await response.json()).get("filename")) == (200, "\ufffd.jsonl")
        assert not any((here.settings.folder / "incoming").iterdir())


async def test_a_window_that_is_no_text_is_a_400(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.start_server()
        file = await here.client().files.create(file=("a.jsonl", jsonl([line(1)])), purpose="batch")
        asked = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
        for value in ([], {}, None, 24, ["24h"]):
            document = asked | {"completion_window": value}
            async with here.fleet.http.post(here.fleet.url + "/v1/batches", json=document) as answer:
                assert answer.status == 400, (value, answer.status, await answer.text())


async def test_uploads_at_one_time_share_a_client_s_room(tmp_path: Path) -> None:
    async with desk(tmp_path, max_file_bytes=100_000, max_client_bytes=150_000) as here:
        await here.start_server()
        begun, gate = [], asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 60_000
            begun.append(None)
            await gate.wait()
            yield b"x" * 30_000

        async def upload() -> int:
            form = aiohttp.MultipartWriter("form-data")
            form.append("batch").set_content_disposition("form-data", name="purpose")
            part = form.append(slow(), {"content-type": "application/octet-stream"})
            part.set_content_disposition("form-data", name="file", filename="a.jsonl")
            async with here.fleet.http.post(here.fleet.url + "/v1/files", data=form) as answer:
                return answer.status

        uploads = [asyncio.create_task(upload()) for _ in range(5)]
        await until(lambda: len(begun) == 5 or any(one.done() for one in uploads))
        gate.set()
        statuses = await asyncio.gather(*uploads)
        assert here.server.manager.files.bytes_of("") <= 150_000, statuses
        assert set(statuses) <= {200, 413}, statuses
