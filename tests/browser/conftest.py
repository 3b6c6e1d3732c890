"""The operator's own web server with a thousand services, and a headless Chromium in front of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web
from browser import fleet
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from pagefleet_contract.names import KIND
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.kube.store import Store
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.server import Server
from pagefleet_operator.web.status_page import StatusPage

TOKEN = "a-test-token"
SERVICES = 1000
SHOTS = Path(__file__).resolve().parents[2] / "build" / "status-page"
CACHE = Path(os.environ.get("PAGEFLEET_CACHE", Path.home() / ".cache/pagefleet"))
AXE = "4.14.1"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--window-size=1280,1000",
)  # fmt: skip


@dataclass
class Operator:
    """The web server in a thread of its own. `publish` acts as a watch and a decision would."""

    url: str
    loop: asyncio.AbstractEventLoop
    store: Store
    page: StatusPage
    versions: int = 10

    def publish(self, namespace: str, name: str, status: Status, *, seed: int = 0) -> None:
        self.versions += 1
        document, now = fleet.document(namespace, name, status, self.versions), time.time()

        def send() -> None:
            self.store.upsert(KIND, document)
            self.page.decided(fleet.seen(namespace, name, status, now, seed), status, now)

        self.call(send)

    def gone(self, namespace: str, name: str) -> None:
        def send() -> None:
            self.store.remove(KIND, namespace, name)
            self.page.changed((namespace, name))

        self.call(send)

    def call(self, work: Callable[[], None]) -> None:
        async def done() -> None:
            work()

        asyncio.run_coroutine_threadsafe(done(), self.loop).result(30)


@pytest.fixture(scope="session")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN + "\n")
    store = Store()
    page = StatusPage(store, token, lambda: True)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def alerts(_: web.Request) -> web.Response:
        return web.json_response({})

    started = asyncio.run_coroutine_threadsafe(Server(Metrics(), alerts, lambda: True, page).start(0), loop)
    runner = started.result(30)
    send = Operator(f"http://127.0.0.1:{runner.addresses[0][1]}/ui/", loop, store, page)
    _fill(send)
    yield send
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


def _fill(operator: Operator) -> None:
    now = time.time()
    for number in range(SERVICES - 1):
        name, namespace = f"service-{number:04}", f"team-{number % 20:02}"
        if number % 97 == 5:
            status = fleet.rollout(now)
        else:
            status = fleet.idle(now, ready=1 + number % 4, degraded=number % 211 == 7)
        operator.publish(namespace, name, status, seed=number)
    _rollout(operator, now)


def _rollout(operator: Operator, now: float) -> None:
    """Give `team-00/chat` a past of ten minutes. The tests look at its page closely."""

    def past() -> None:
        operator.store.upsert(KIND, fleet.document("team-00", "chat", fleet.rollout(now)))
        for step in range(61):
            status, at = fleet.rollout(now, step / 60), now - 610 + step * 10
            operator.page.decided(fleet.seen("team-00", "chat", status, at), status, at)

    operator.call(past)
    operator.publish("team-00", "chat", fleet.rollout(now), seed=3)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """Yield a driver of Chromium. Fail, never skip, where it is missing: `make test-browser` installs it."""
    program, control = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or control is None:
        pytest.fail("chromium and chromedriver are needed: make test-browser installs them", pytrace=False)
    options = Options()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(control))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: WebDriver, operator: Operator) -> WebDriver:
    """Return a browser that is signed in and shows the fleet."""
    chromium.get(operator.url)
    if chromium.find_elements(By.ID, "token"):
        chromium.find_element(By.ID, "token").send_keys(TOKEN)
        chromium.find_element(By.CSS_SELECTOR, "button").click()
    return chromium


@pytest.fixture(scope="session")
def axe() -> str:
    """Return axe-core's source, from the npm registry into the cache."""
    path = CACHE / "axe-core" / AXE / "axe.min.js"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(
            ["npm", "pack", "--json", f"axe-core@{AXE}"], cwd=path.parent, check=True, capture_output=True
        )
        with tarfile.open(path.parent / json.loads(packed.stdout)[0]["filename"]) as archive:
            member = archive.extractfile("package/axe.min.js")
            if member is None:
                pytest.fail("axe-core's package holds no axe.min.js")
            path.write_bytes(member.read())
    return path.read_text()
