"""Protects the list/watch loop: chunks, bookmarks, a version that is too old, failed connections, dead connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pagefleet_contract import reflector
from pagefleet_contract.reflector import Feed, Raw, Reflector

Answer = Callable[[], "Response"]


class ConnectionLost(Exception):
    """The client's own kind of error, which is no OSError."""


class Response:
    """One answer of the API server. `stuck`: after its lines it sends nothing more and does not end."""

    def __init__(self, *lines: object, status: int = 200, stuck: bool = False) -> None:
        self.status = status
        self._lines = [json.dumps(line).encode() + b"\n" for line in lines]
        self._stuck = stuck

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    @property
    def content(self) -> Response:
        return self

    async def text(self) -> str:
        return b"".join(self._lines).decode()

    async def readline(self) -> bytes:
        if self._lines:
            return self._lines.pop(0)
        if self._stuck:
            await asyncio.Event().wait()
        return b""


class Server:
    """Gives its answers in order, and lets the test end at the last one."""

    def __init__(self, *answers: Response | Exception) -> None:
        self.asked: list[dict[str, Any]] = []
        self.done = asyncio.Event()
        self._answers = list(answers)

    async def request(self, **arguments: Any) -> Response:
        self.asked.append(arguments)
        if not self._answers:
            self.done.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Copy:
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lists: list[list[str]] = []
        self.restarts = 0
        self.absences = 0

    def feed(self, server: Server, required: bool = True, may_be_forbidden: bool = False) -> Feed:
        return Feed(
            "Pod",
            server.request,
            self._replace,
            lambda raw: self.names.add(_name(raw)),
            lambda raw: self.names.discard(_name(raw)),
            required,
            may_be_forbidden,
            on_absent=self._absent,
            on_restart=self._restarted,
        )

    def _absent(self) -> None:
        self.absences += 1
        self.names.clear()

    def _replace(self, items: list[Raw]) -> None:
        self.names = {_name(raw) for raw in items}
        self.lists.append(sorted(self.names))

    def _restarted(self) -> None:
        self.restarts += 1


def _name(raw: Raw) -> str:
    metadata = raw["metadata"]
    assert isinstance(metadata, dict)
    return str(metadata["name"])


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def listed(version: int, *names: str, following: str = "") -> Response:
    metadata = {"resourceVersion": str(version)} | ({"continue": following} if following else {})
    return Response({"items": [pod(name, 1) for name in names], "metadata": metadata})


def event(kind: str, name: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": pod(name, version)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE", "GONE_PAUSE", "LAST_PAUSE", "ABSENT_PAUSE"):
        monkeypatch.setattr(reflector, name, 0.0)


async def follow(
    *answers: Response | Exception, required: bool = True, may_be_forbidden: bool = False
) -> tuple[Copy, Server]:
    copy, server = Copy(), Server(*answers)
    task = asyncio.create_task(Reflector(copy.feed(server, required, may_be_forbidden), ConnectionLost).run())
    ended = asyncio.create_task(server.done.wait())
    await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert server.done.is_set(), "the reflector ended or stands still"
    for one in (task, ended):
        one.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return copy, server


async def test_it_lists_in_chunks_and_watches_from_the_lists_version() -> None:
    copy, server = await follow(listed(7, "a", following="more"), listed(7, "b"))
    assert copy.lists == [["a", "b"]]
    assert [one.get("_continue") for one in server.asked] == [None, "more", None]
    assert server.asked[-1]["resource_version"] == "7"
    assert server.asked[-1]["allow_watch_bookmarks"] is True


async def test_events_change_the_copy_and_a_bookmark_only_the_version() -> None:
    events = (event("ADDED", "b", 8), event("MODIFIED", "b", 9), event("DELETED", "a", 10), event("BOOKMARK", "x", 20))
    copy, server = await follow(listed(7, "a"), Response(*events))
    assert copy.names == {"b"}
    assert [one["resource_version"] for one in server.asked[1:]] == ["7", "20"]
    assert copy.restarts == 0


@pytest.mark.parametrize(
    "gone",
    [
        Response({"message": "too old"}, status=410),
        Response({"type": "ERROR", "object": {"code": 410, "message": "too old"}}),
    ],
)
async def test_a_version_that_is_too_old_leads_to_a_new_list(gone: Response) -> None:
    copy, server = await follow(listed(7, "a"), gone, listed(30, "c"))
    assert copy.lists == [["a"], ["c"]]
    assert server.asked[-1]["resource_version"] == "30"
    assert copy.restarts == 0


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionLost("reset"),
        OSError("unreachable"),
        TimeoutError(),
        Response({"message": "busy"}, status=503),
        Response({"type": "ERROR", "object": {"code": 500, "message": "etcd"}}),
        Response({"type": "NONSENSE", "object": {}}),
        Response([]),
        Response(),  # it ends at once
    ],
)
async def test_a_failed_watch_goes_on_where_it_stopped(failure: Response | Exception) -> None:
    copy, server = await follow(listed(7, "a"), Response(event("ADDED", "b", 8)), failure)
    assert (copy.names, len(copy.lists), copy.restarts) == ({"a", "b"}, 1, 1)
    assert server.asked[-1]["resource_version"] == "8"


@pytest.mark.parametrize("failure", [Response({"kind": "Status"}), Response([]), Response({}, status=403)])
async def test_a_failed_list_is_asked_for_again(failure: Response) -> None:
    copy, _ = await follow(failure, listed(7, "a"))
    assert (copy.lists, copy.restarts) == ([["a"]], 1)


async def test_a_silent_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "GUARD_SECONDS", 0.02)
    copy, server = Copy(), Server(listed(7, "a"), Response(event("ADDED", "b", 8), stuck=True))
    task = asyncio.create_task(Reflector(copy.feed(server)).run())
    await asyncio.wait_for(server.done.wait(), 10)
    task.cancel()
    assert copy.names == {"a", "b"}
    assert copy.restarts == 1
    assert server.asked[2]["resource_version"] == "8"


async def test_it_is_synced_after_the_first_list() -> None:
    server = Server(OSError("away"), listed(7, "a"))
    one = Reflector(Copy().feed(server))
    assert not one.synced
    task = asyncio.create_task(one.run())
    await asyncio.wait_for(server.done.wait(), 10)
    task.cancel()
    assert one.synced


@pytest.mark.parametrize(("required", "synced"), [(False, True), (True, False)])
async def test_a_kind_that_is_not_required_is_synced_once_the_server_says_that_it_has_none(
    required: bool, synced: bool
) -> None:
    """Before that answer a gateway would be ready without the pools that exist."""
    server = Server(OSError("away"), Response({"message": "not found"}, status=404))
    reflected = Reflector(Copy().feed(server, required))
    task = asyncio.create_task(reflected.run())
    while len(server.asked) < 2:
        assert not reflected.synced
        await asyncio.sleep(0)
    await asyncio.wait_for(server.done.wait(), 10)
    task.cancel()
    assert reflected.synced is synced


async def test_a_kind_that_goes_and_comes_back_is_forgotten_and_listed_anew_and_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    absent = [Response({"message": "not found"}, status=404) for _ in range(3)]
    copy, server = await follow(*absent[:2], listed(7, "a"), absent[2], listed(9, "b"), required=False)
    assert (copy.lists, copy.absences, copy.restarts) == ([["a"], ["b"]], 3, 0)
    assert ["watch" in one for one in server.asked] == [False, False, False, True, False, True]
    told = [record.levelname for record in caplog.records if "does not serve this kind" in record.message]
    assert told == ["INFO", "INFO"]  # once for each time that it is away
    copy, _ = await follow(listed(7, "a"), Response({"message": "not found"}, status=404))
    assert (copy.absences, copy.restarts) == (0, 1)  # a kind that must be served


async def test_a_kind_that_need_not_be_readable_is_as_one_that_is_not_served_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    forbidden = [Response({"message": "no"}, status=403) for _ in range(3)]
    copy, _ = await follow(*forbidden[:2], listed(7, "a"), required=False, may_be_forbidden=True)
    assert (copy.lists, copy.absences, copy.restarts) == ([["a"]], 2, 0)
    told = [record.levelname for record in caplog.records if "does not let this account list" in record.message]
    assert told == ["WARNING"]
    copy, _ = await follow(forbidden[2], listed(7, "a"), required=False)
    assert (copy.absences, copy.restarts) == (0, 1)  # any other kind must be readable where it is served


async def test_pauses_grow_and_begin_again_when_the_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(reflector, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(reflector, "LAST_PAUSE", 4.0)
    monkeypatch.setattr(reflector.random, "uniform", lambda *_: 1.0)
    monkeypatch.setattr(reflector.asyncio, "sleep", sleep)
    failures = (OSError("away"),) * 4
    await follow(*failures, listed(7, "a"), Response(event("ADDED", "b", 8)), *failures[:2])
    assert pauses == [1.0, 2.0, 4.0, 4.0, 1.0, 2.0]


async def test_an_error_of_the_receiver_is_not_hidden() -> None:
    def broken(_: list[Raw]) -> None:
        raise KeyError("a bug")

    feed = Feed("Pod", Server(listed(7, "a")).request, broken, lambda _: None, lambda _: None)
    with pytest.raises(KeyError):
        await Reflector(feed).run()
