"""Protects what the documentation tells people to type at a cluster and to apply to one: every command runs, on the real
control plane, with the exit code and the output that the page shows, in the page's order; the API server takes every
InferenceService of the documentation, the examples and the samples. (What needs engines runs in test_e2e_fleet.)"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import docs_blocks
from support.cluster.plane import TOKEN, Plane
from support.docs_blocks import CHECKOUT, fenced, play

from pagefleet_contract.names import RECORD_SELECTOR

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
ON_PLANE = docs_blocks.of("plane")


@pytest.mark.parametrize("page", ON_PLANE)
async def test_commands_run_on_the_control_plane(page: str, plane: Plane, tmp_path: Path) -> None:
    environment = {"KUBECONFIG": str(plane.kubectl.kubeconfig), "OPERATOR": plane.operator_url, "TOKEN": TOKEN}
    await emptied(plane)
    # In a thread: the node of this control plane lives in this event loop.
    await asyncio.to_thread(play, ON_PLANE[page], tmp_path, environment)
    await emptied(plane)


async def emptied(plane: Plane) -> None:
    """Delete every service of the namespace, and what is known of them."""
    await plane.kubectl.run("delete", "isvc", "--all", "-n", "default")
    await plane.kubectl.run("delete", "controllerrevisions", "-n", "default", "-l", RECORD_SELECTOR)


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return (place, document) of every InferenceService that people may copy."""
    for page, text in docs_blocks.pages().items():
        for line, language, _, body in fenced(page, text):
            if language == "yaml" and "apiVersion: pagefleet.io/" in body:
                yield from ((f"{page}:{line}", document) for document in yaml.safe_load_all(body))
    for path in (*sorted(CHECKOUT.glob("examples/*.yaml")), *sorted(CHECKOUT.glob("manifests/samples/*.yaml"))):
        yield from ((path.name, document) for document in yaml.safe_load_all(path.read_text()))


async def test_the_api_server_takes_every_inference_service(plane: Plane) -> None:
    """With kubectl's validation on: unknown fields are errors."""
    documents = [(where, one) for where, one in services() if one.get("kind") == "InferenceService"]
    assert len(documents) >= 10
    items = []
    for index, (_, document) in enumerate(documents):
        document = copy.deepcopy(document)
        document["metadata"] = {"name": f"docs-{index}", "namespace": "default"}
        items.append(document)

    async def dry(items: list[dict[str, Any]]) -> tuple[int, str]:
        documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        done = await plane.kubectl.run("create", "--dry-run=server", "-f", "-", stdin=documents, check=False)
        return done.code, done.text

    code, text = await dry(items)
    assert code == 0, f"{text}\n{dict(enumerate(where for where, _ in documents))}"
    assert text.count("created (server dry run)") == len(items)
    items[0]["spec"]["scalling"] = {}
    assert (await dry(items[:1]))[0] != 0
