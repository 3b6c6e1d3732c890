"""Protects the status page's door: off without a token, closed without a valid one or with a forged, expired or outdated
cookie, nothing but its own files, a strict policy on every answer; and its stream: whole, then changes, and an end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from browser import fleet

from pagefleet_contract.names import KIND
from pagefleet_operator.kube.store import Store
from pagefleet_operator.web import status_page
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.server import Server
from pagefleet_operator.web.session import LASTS_SECONDS, Sessions
from pagefleet_operator.web.status_page import MAX_VIEWERS, StatusPage
from pagefleet_operator.web.view import STALE_SECONDS

TOKEN = {"Authorization": "Bearer sesame"}


@dataclass
class Served:
    url: str
    token: Path
    store: Store
    page: StatusPage
    http: aiohttp.ClientSession
    runner: web.AppRunner


async def _nothing(_: web.Request) -> web.Response:
    return web.json_response({})


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    token, store = tmp_path / "token", Store()
    token.write_text("sesame\n")
    page = StatusPage(store, token, lambda: False)
    runner = await Server(Metrics(), _nothing, lambda: True, page).start(0)
    async with aiohttp.ClientSession() as http:
        yield Served(f"http://127.0.0.1:{runner.addresses[0][1]}/ui", token, store, page, http, runner)
    await runner.cleanup()


async def test_without_a_token_there_is_no_page(served: Served) -> None:
    served.token.unlink()
    for path in ("", "/", "/login", "/api/services", "/events", "/static/app.js"):
        async with served.http.get(served.url + path, headers=TOKEN) as answer:
            assert answer.status == 404
    served.token.write_text("\n")  # an empty token lets nobody in
    async with served.http.get(served.url + "/api/services", headers={"Authorization": "Bearer "}) as answer:
        assert answer.status == 404


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic sesame", "Bearer sesame2", "Bearer ünïcode"])
async def test_only_the_token_opens(served: Served, header: str) -> None:
    for path in ("/api/services", "/api/services/a/b", "/events", "/static/app.js"):
        async with served.http.get(served.url + path, headers={"Authorization": header}) as answer:
            assert answer.status == 401


async def test_who_is_not_signed_in_is_led_to_the_form(served: Served) -> None:
    async with served.http.get(served.url + "/", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "login")
    async with served.http.post(served.url + "/login", data={"token": "wrong"}) as answer:
        refused = await answer.text()
        assert (answer.status, answer.content_type) == (403, "text/html")
    async with served.http.get(served.url + "/login") as answer:
        form = await answer.text()
    assert 'role="alert">This is not the token.</p>' in refused
    assert "role=" not in form
    assert "$" not in form + refused
    async with served.http.post(served.url + "/login", data={"token": "sesame"}, allow_redirects=False) as answer:
        cookie = answer.headers["Set-Cookie"]
        assert (answer.status, answer.headers["Location"]) == (303, "./")
        assert "HttpOnly; SameSite=Strict" in cookie
        assert "sesame" not in cookie


def test_a_cookie_ends_with_its_time_and_with_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    sessions = Sessions(file)
    cookie = sessions.cookie(1000.0)
    assert sessions.allows("", cookie, 1001.0)
    assert not sessions.allows("", cookie, 1000.0 + LASTS_SECONDS)
    until, signature = cookie.split(".")
    for forged in (
        f"{int(until) + 9}.{signature}",
        f"{until}.",
        until,
        ".",
        f"{until}.{signature}0",
        f"²{until}.x",
        "",
    ):
        assert not sessions.allows("", forged, 1001.0)
    file.write_text("two")
    assert not sessions.allows("", cookie, 1001.0)


async def test_every_answer_has_the_policy_and_only_own_files_are_served(served: Served) -> None:
    for path in ("/", "/login", "/static/app.js", "/static/style.css", "/api/services", "/api/services/a/b"):
        async with served.http.get(served.url + path, headers=TOKEN) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/static/index.html", "/static/..%2Fserver.py", "/static/%2Fetc%2Fpasswd", "/static/none.js"):
        async with served.http.get(served.url + path, headers=TOKEN) as answer:
            assert answer.status == 404


def test_pages_name_only_their_own_files_and_hold_no_inline_script() -> None:
    for file in status_page.STATIC.glob("*.html"):
        text = file.read_text()
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text
        assert "<style" not in text
        assert " style=" not in text
        assert "<script>" not in text
        assert " on" not in "".join(part.split(">")[0] for part in text.split("<input")[1:])


async def events(answer: aiohttp.ClientResponse) -> tuple[str, Any]:
    """Return the next event of a stream."""
    async with asyncio.timeout(10):
        name = (await answer.content.readline()).decode().strip().removeprefix("event: ")
        data = json.loads((await answer.content.readuntil(b"\n\n")).decode().removeprefix("data: "))
    return name, data


async def test_the_stream_tells_all_then_what_changed(served: Served) -> None:
    now = time.time()
    served.store.upsert(KIND, fleet.document("a", "one", fleet.idle(now)))
    async with served.http.get(served.url + "/events", headers=TOKEN) as answer:
        name, data = await events(answer)
        assert (name, data["leads"], [row["name"] for row in data["rows"]]) == ("fleet", False, ["one"])
        status = fleet.rollout(now)
        served.store.upsert(KIND, fleet.document("a", "two", status, 2))
        served.page.decided(fleet.seen("a", "two", status, now), status, now)
        name, data = await events(answer)
        assert (name, data["gone"], [row["name"] for row in data["rows"]]) == ("rows", [], ["two"])
        assert data["rows"][0]["queue"] is not None
        served.page.changed(("a", "two"))  # nothing new about it: not sent
        served.store.remove(KIND, "a", "one")
        served.page.changed(("a", "one"))
        name, data = await events(answer)
        assert (name, data["rows"], data["gone"]) == ("rows", [], ["a/one"])


async def test_the_stream_of_a_service_and_its_end(served: Served) -> None:
    now = time.time()
    served.store.upsert(KIND, fleet.document("a", "one", fleet.idle(now)))
    async with served.http.get(served.url + "/events?service=a/one", headers=TOKEN) as answer:
        assert (await events(answer))[1]["headline"] == f"Revision {fleet.STABLE} serves all traffic."
        served.store.remove(KIND, "a", "one")
        served.page.changed(("a", "one"))
        assert (await events(answer))[1] == {"gone": True}
        served.token.write_text("another")  # who read with the old one reads no more
        served.page.changed(("a", "one"))
        async with asyncio.timeout(10):
            rest = await answer.content.read()
        assert rest.count(b"event:") <= 1


async def test_numbers_that_nobody_reads_any_more_are_shown_to_be_old(served: Served) -> None:
    """An operator that cannot decide sends no change, and the page must not say "Read 2 s ago" for an hour."""
    now, status = time.time(), fleet.idle(time.time())
    page = StatusPage(served.store, served.token, lambda: True, quiet=0.01)
    served.store.upsert(KIND, fleet.document("a", "one", status))
    page.decided(fleet.seen("a", "one", status, now), status, now - STALE_SECONDS - 1)
    runner = await Server(Metrics(), _nothing, lambda: True, page).start(0)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/ui/events?service=a/one"
    async with served.http.get(url, headers=TOKEN) as answer:
        shown = [(await events(answer))[1] for _ in range(3)]
    await runner.cleanup()
    assert shown[0]["now"] < shown[1]["now"] < shown[2]["now"]
    assert {one["stale"] for one in shown} == {True}
    assert {one["read"] for one in shown} == {now - STALE_SECONDS - 1}


async def test_too_many_viewers_are_refused_and_leave_room_when_they_go(served: Served) -> None:
    streams = [await served.http.get(served.url + "/events", headers=TOKEN) for _ in range(MAX_VIEWERS)]
    async with served.http.get(served.url + "/events", headers=TOKEN) as answer:
        assert answer.status == 503
    async with asyncio.timeout(20):
        await served.runner.shutdown()  # ends the open streams
        for stream in streams:
            await stream.content.read()
    async with served.http.get(served.url + "/api/services", headers=TOKEN) as answer:
        assert answer.status == 200
