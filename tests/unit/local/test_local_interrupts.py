"""Protects what an interrupted demo leaves behind: nothing. What takes the fleet down runs after what brings it up, and programs that were
started for a scene end with it."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path

import pytest

from pagefleet_local.base import paths
from pagefleet_local.base.processes import marked
from pagefleet_local.base.threads import in_thread
from pagefleet_local.demo.monitoring import Monitoring
from pagefleet_local.demo.narration import Narrator
from pagefleet_local.fleet.access import Direct
from pagefleet_local.fleet.install import Fleet
from pagefleet_local.fleet.kubectl import Kubectl, KubectlError


def content(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_what_follows_an_interrupt_waits_for_the_work_that_has_begun() -> None:
    order, began, go_on, loop = list[str](), asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def up() -> None:
        loop.call_soon_threadsafe(began.set)
        go_on.wait(60)
        order.append("up")

    async def demo() -> None:
        try:
            await in_thread(up)
        finally:
            await in_thread(lambda: order.append("down"))

    playing = asyncio.ensure_future(demo())
    await began.wait()
    for _ in range(2):  # people interrupt twice
        playing.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert order == []
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert order == ["up", "down"]


async def test_work_in_a_thread_has_its_result_and_its_failure() -> None:
    assert await in_thread(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_make_down_finds_what_a_killed_demo_has_started(tmp_path: Path) -> None:
    """Prometheus and Alertmanager read their configuration again when their terminal is closed (SIGHUP), and go on."""
    fleet = Fleet(Kubectl(tmp_path), gateway="", operator="", token="", access=Direct())
    monitoring = Monitoring(fleet, Narrator())
    monitoring._directory = tmp_path
    await monitoring._start("sleep", "60")
    try:
        assert monitoring._processes[0].pid in marked(paths.layout())
    finally:
        await monitoring._end()


async def test_monitoring_that_does_not_start_leaves_no_token_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kubectl = Kubectl(tmp_path / "kubeconfig", Path("/bin/false"))
    fleet = Fleet(kubectl, gateway="", operator="http://127.0.0.1:9", token="t", access=Direct())
    with pytest.raises(KubectlError):
        async with Monitoring(fleet, Narrator()):
            pass
    assert content(tmp_path) == []
