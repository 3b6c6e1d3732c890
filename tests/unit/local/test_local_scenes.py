"""Protects the demo's faulty revisions: each is a spec that the operator accepts, and the real engine's server with one bug."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pagefleet_engine.api.base.connections import HEAD_SECONDS
from pagefleet_engine.api.server import Server
from pagefleet_local.demo import faulty
from pagefleet_local.demo.scenes import errors, promoted
from pagefleet_local.demo.stage import sample
from pagefleet_local.fleet.kubectl import Document
from pagefleet_operator.domain.spec.parse import Spec, parse

FAULTY = {"failing": faulty.failing, "wearing": faulty.wearing}


@pytest.mark.parametrize("scene", [errors, promoted])
def test_the_steps_of_a_scene_are_a_rollout_that_the_operator_accepts(scene: ModuleType) -> None:
    document = sample()
    document["spec"]["rollout"]["steps"] = scene.STEPS
    assert isinstance(parse(document["spec"]), Spec)


def program(document: Document) -> str:
    python, _, code = document["spec"]["engine"]["command"]
    assert python == "python3"
    return str(code)


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_revision_is_the_samples_engine_otherwise(name: str) -> None:
    document = FAULTY[name]()
    assert isinstance(parse(document["spec"]), Spec)
    assert document["metadata"] == sample()["metadata"]
    assert {key: value for key, value in document["spec"].items() if key not in ("model", "engine")} == {
        key: value for key, value in sample()["spec"].items() if key not in ("model", "engine")
    }
    code = program(document)
    shown = subprocess.run([sys.executable, "-c", code, "serve", "--help"], capture_output=True, text=True, check=True)
    flags = {flag.partition("=")[0] for flag in document["spec"]["engine"]["args"][1:]}
    assert sorted(flag for flag in flags if flag not in shown.stdout) == []


async def statuses(code: str, monkeypatch: pytest.MonkeyPatch, **names: object) -> list[int]:
    """The statuses of eight POSTs to a server with the program's bug. A GET, as probes send it, never meets the bug."""

    @web.middleware
    async def inner(self: Server, request: web.Request, handler: object) -> web.StreamResponse:
        return web.Response(text="ok")

    monkeypatch.setattr(Server, "_outermost", inner)
    exec(code.partition("from pagefleet_engine.entry")[0], dict(names))
    app = web.Application(middlewares=[object.__new__(Server)._outermost])
    answers = []
    async with TestClient(TestServer(app)) as client:
        for _ in range(8):
            assert (await client.get("/health")).status == 200
            answers.append((await client.post("/v1/chat/completions")).status)
    return answers


async def test_a_failing_one_fails_a_quarter_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = await statuses(program(faulty.failing()), monkeypatch)
    assert sorted(answers) == [200] * 6 + [500] * 2


async def test_a_wearing_one_is_slow_once_it_is_worn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    worn = tmp_path / "worn"
    code = program(faulty.wearing()).replace(faulty.WORN_FILE, str(worn)).replace("asyncio.sleep", "sleep")
    assert await statuses(code, monkeypatch, sleep=sleep) == [200] * 8
    assert waited == [0.0] * 8
    worn.write_text("6.5")
    assert await statuses(code, monkeypatch, sleep=sleep) == [200] * 8
    assert waited[8:] == [6.5] * 8


def test_a_worn_one_is_a_regression_on_a_busy_machine_too() -> None:
    """Six seconds were no proof where one answer in ten had taken three: the guard accepts a doubling, and its bucket ended at 6.4 s."""
    assert faulty.worn_seconds([]) == faulty.worn_seconds([0.3] * 300) == 6.0
    assert faulty.worn_seconds([0.4] * 270 + [2.97] * 30) == 9.0
    assert faulty.worn_seconds([30.0] * 300) == faulty.MOST_WORN_SECONDS < HEAD_SECONDS
