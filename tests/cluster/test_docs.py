"""Protects what the documentation tells people to type at a cluster and to apply to one: every command runs, on the real
control plane or the real fleet, with the exit code and the output that the page shows, in the page's order; the API
server takes every InferenceService of the documentation, the examples and the samples."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docs_blocks
import pytest
import pytest_asyncio
import yaml
from cluster_plane import TOKEN, Plane
from docs_blocks import CHECKOUT, Block, Shell, fenced

from pagefleet_local import cleanup, paths
from pagefleet_local.fleet.install import Fleet
from pagefleet_local.fleet.up import fleet_up
from pagefleet_local.up import Options, healthy

ON_PLANE, ON_FLEET = docs_blocks.of("plane"), docs_blocks.of("fleet")
TELL = 'kubectl get isvc -A -o jsonpath=\'{range .items[*]}{.metadata.name}{" "}{.status.rollout}{"\\n"}{end}\''
# What pages bring about and wait for between commands, in hidden lines; a reader waits by looking. `act` is what
# `pagefleet rollout ACTION` does, without the start of a Python for each.
WAITS = f"""\
act() {{
  id=docs-$(date +%s%N)
  kubectl annotate isvc "$1" --overwrite \\
    pagefleet.io/action="{{\\"id\\":\\"$id\\",\\"action\\":\\"$2\\",\\"by\\":\\"root (user)\\"}}"
  kubectl wait isvc "$1" --for=jsonpath='{{.status.action.id}}'="$id" --timeout=60s
}}
phase() {{
  for _ in $(seq 300); do
    if [ "$(kubectl get isvc "$1" ${{3:+-n "$3"}} -o jsonpath='{{.status.rollout.phase}}')" = "$2" ]; then return; fi
    sleep 0.2
  done
  echo "$1 is not $2"; {TELL}; return 1
}}
"""


def play(blocks: list[Block], folder: Path, environment: dict[str, str]) -> None:
    with Shell(folder, environment) as shell:
        shell.run(Block("waits", 0, "here", "", True, WAITS))
        for block in blocks:
            shell.run(block)


@pytest.mark.cluster
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("page", ON_PLANE)
async def test_commands_run_on_the_control_plane(page: str, plane: Plane, tmp_path: Path) -> None:
    environment = {"KUBECONFIG": str(plane.kubectl.kubeconfig), "OPERATOR": plane.operator_url, "TOKEN": TOKEN}
    await plane.kubectl.run("delete", "isvc", "--all", "-n", "default")
    # In a thread: the node of this control plane lives in this event loop.
    await asyncio.to_thread(play, ON_PLANE[page], tmp_path, environment)
    await plane.kubectl.run("delete", "isvc", "--all", "-n", "default")


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, document) of every InferenceService that people may copy."""
    for page, text in docs_blocks.pages().items():
        for line, language, _, body in fenced(page, text):
            if language == "yaml" and "apiVersion: pagefleet.io/" in body:
                yield from ((f"{page}:{line}", document) for document in yaml.safe_load_all(body))
    for path in (*sorted(CHECKOUT.glob("examples/*.yaml")), *sorted(CHECKOUT.glob("manifests/samples/*.yaml"))):
        yield from ((path.name, document) for document in yaml.safe_load_all(path.read_text()))


@pytest.mark.cluster
@pytest.mark.asyncio(loop_scope="session")
async def test_the_api_server_takes_every_inference_service(plane: Plane) -> None:
    """With kubectl's validation on: unknown fields are errors."""
    found = [(where, one) for where, one in services() if one.get("kind") == "InferenceService"]
    assert len(found) >= 10
    items = []
    for index, (_, document) in enumerate(found):
        document = copy.deepcopy(document)
        document["metadata"] = {"name": f"docs-{index}", "namespace": "default"}
        items.append(document)

    async def dry(items: list[dict[str, Any]]) -> tuple[int, str]:
        documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        done = await plane.kubectl.run("create", "--dry-run=server", "-f", "-", stdin=documents, check=False)
        return done.code, done.text

    code, text = await dry(items)
    assert code == 0, f"{text}\n{dict(enumerate(where for where, _ in found))}"
    assert text.count("created (server dry run)") == len(items)
    items[0]["spec"]["scalling"] = {}
    assert (await dry(items[:1]))[0] != 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """The fleet of `make up`; taken down afterwards unless it ran before."""
    ran_before = healthy(Options())
    yield await fleet_up(print)
    if not ran_before:
        cleanup.down(paths.layout())
        assert cleanup.leftovers(paths.layout()) == []


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="module")
async def test_commands_run_on_the_fleet(fleet: Fleet, tmp_path: Path) -> None:
    """One page after the other, as a newcomer reads them: the tutorial makes what the others use."""
    first = sorted(ON_FLEET, key=lambda page: (page != "docs/tutorial.md", page))
    assert first[0] == "docs/tutorial.md"
    for page in first:
        folder = tmp_path / page.replace("/", "-")
        folder.mkdir()
        await asyncio.to_thread(play, ON_FLEET[page], folder, {"KUBECONFIG": str(fleet.kubectl.kubeconfig)})
    await fleet.kubectl.run("delete", "namespace", "team-a", "--ignore-not-found", "--wait=true", "--timeout=180s")
