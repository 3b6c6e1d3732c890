"""The sources of the chart: the objects of a kustomization, and the patches of components."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pagefleet_local.chart.text import When
from pagefleet_local.fleet.kubectl import BINARY, Document

MANIFESTS = Path(__file__).resolve().parents[3] / "manifests"


class SourceError(RuntimeError):
    """The manifests hold something that the chart has no counterpart for; the message names it."""


@dataclass(frozen=True)
class Operation:
    """One JSON patch operation on the object `kind` `name`."""

    kind: str
    name: str
    op: str
    path: tuple[str, ...]
    value: Any = None


def kustomized(folder: Path) -> list[Document]:
    """What `kubectl kustomize` prints. Raises SourceError with its message."""
    done = subprocess.run([str(BINARY), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SourceError(f"kubectl kustomize {folder}: {done.stderr.strip()}")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def operations(component: str) -> list[Operation]:
    """The patches of manifests/components/`component`. Raises SourceError for a patch without kind and name."""
    described = yaml.safe_load((MANIFESTS / "components" / component / "kustomization.yaml").read_text())
    operations = []
    for patch in described.get("patches") or ():
        target = patch["target"]
        if not {"kind", "name"} <= set(target):
            raise SourceError(f"components/{component}: a patch's target needs kind and name")
        for one in yaml.safe_load(patch["patch"]):
            path = tuple(part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:])
            operations.append(Operation(target["kind"], target["name"], one["op"], path, one.get("value")))
    return operations


def patched(documents: list[Document], component: str, condition: str, valued: frozenset[tuple[str, ...]]) -> None:
    """Put a component's patches into `documents`, each in force where `condition` holds. What it replaces must be in
    `valued`: the paths that a value of the chart sets anyway. Raises SourceError."""
    for operation in operations(component):
        described = f"components/{component}: {operation.op} /{'/'.join(operation.path)} of {operation.name}"
        parent: Any = _object(documents, operation, described)
        *way, last = operation.path
        for part in way:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        key: Any = int(last) if isinstance(parent, list) and last != "-" else last
        match operation.op:
            case "test":
                if parent[key] != operation.value:
                    raise SourceError(f"{described}: it is {parent[key]}")
            case "add" if last == "-":
                parent.append(When(condition, operation.value))
            case "add" if isinstance(parent, dict):
                parent[key] = When(condition, operation.value)
            case "remove" if isinstance(parent, list):
                parent[key] = When(f"not ({condition})", parent[key])
            case "replace" if operation.path in valued:
                pass
            case _:
                raise SourceError(f"{described}: the chart has no counterpart")


def _object(documents: list[Document], operation: Operation, described: str) -> Document:
    for document in documents:
        if (document["kind"], document["metadata"]["name"]) == (operation.kind, operation.name):
            return document
    raise SourceError(f"{described}: there is no such object")
