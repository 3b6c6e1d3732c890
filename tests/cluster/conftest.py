"""One real control plane for the whole run (etcd, API server, controllers, scheduler), a status-only node, and the
operator as it is shipped: the console script, under the shipped ClusterRole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.cluster.own_plane import control_plane
from support.cluster.plane import CHECKOUT, OPERATOR_USER, PORT, TOKEN, Operator, Plane
from support.cluster.status_node import StatusNode, ended
from support.recording import Recording

from pagefleet_local.base import paths
from pagefleet_local.base.certificates import Authority
from pagefleet_local.demo.narration import Narrator
from pagefleet_local.fleet.install import Fleet, install_crd
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.fleet_up import fleet_up
from pagefleet_local.lifecycle.up import Cluster, Options, healthy
from pagefleet_operator.kube.client import Api

HERE = Path(__file__).parent
RAN_BEFORE = pytest.StashKey[bool]()
LOG_SHOWN = 6000  # characters


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `last` read what the others of this folder left on the plane: they run after those."""
    places = [index for index, item in enumerate(items) if HERE in item.path.parents]
    ordered = sorted((items[index] for index in places), key=lambda item: item.get_closest_marker("last") is not None)
    for index, item in zip(places, ordered, strict=True):
        items[index] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the operator's log with a test that failed: it mostly says why."""
    report = yield
    plane = getattr(item, "funcargs", {}).get("plane")
    if report.failed and plane is not None:
        report.sections.append(("the operator's log", plane.operator.log.read_text()[-LOG_SHOWN:]))
    return report


@pytest.fixture(scope="session", name="control_plane")
def shared_control_plane() -> Iterator[Cluster]:
    with control_plane() as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plane(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plane]:
    layout, folder = control_plane.layout, tmp_path_factory.mktemp("operator")
    kubectl = Kubectl(control_plane.kubeconfig)
    await install_crd(kubectl, print)
    await kubectl.run("apply", "-f", str(CHECKOUT / "manifests/base/namespace.yaml"))
    await kubectl.run("apply", "-f", str(CHECKOUT / "manifests/base/operator-rbac.yaml"))
    (folder / "token").write_text(TOKEN)
    authority = Authority(layout.pki)
    account = authority.issue("operator", OPERATOR_USER)
    own = authority.kubeconfig(folder / "kubeconfig", f"https://127.0.0.1:{layout.api_port}", account)
    environment = {
        **os.environ,
        "KUBECONFIG": str(own),
        "PAGEFLEET_OPERATOR_PORT": str(PORT),
        "PAGEFLEET_ALERT_TOKEN_FILE": str(folder / "token"),
        "PAGEFLEET_STATUS_PAGE_TOKEN_FILE": str(folder / "token"),
    }
    async with Api(str(control_plane.kubeconfig)) as api:
        node = StatusNode(api)
        await node.register()
        recording = Recording(api)
        serving = asyncio.gather(node.run(), recording.run())
        operator = Operator(environment, folder / "operator.log")
        try:
            await operator.start()
            yield Plane(kubectl, api, node, layout, operator, recording)
        finally:
            operator.process.terminate()
            assert operator.process.wait(20) == 0, operator.log.read_text()[-3000:]
            await ended(serving)
            (end,) = await asyncio.gather(serving, return_exceptions=True)
            assert isinstance(end, asyncio.CancelledError), f"the node or the recording ended: {end!r}"


@pytest.fixture(scope="module")
def narrator() -> Narrator:
    return Narrator()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(request: pytest.FixtureRequest, narrator: Narrator) -> AsyncIterator[Fleet]:
    """Yield the fleet of `make up`. It stays for the next file that needs it, and is taken down after the last one, unless it
    ran before the tests."""
    ran_before = request.config.stash.setdefault(RAN_BEFORE, healthy(Options()))
    yield await fleet_up(narrator.say)
    users = [item.path for item in request.session.items if "fleet" in getattr(item, "fixturenames", ())]
    if not ran_before and request.path == users[-1]:
        cleanup.down(paths.layout())
        assert cleanup.leftovers(paths.layout()) == []
