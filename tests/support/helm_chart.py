"""Shared by the chart's tests: the real helm, and Kubernetes objects in a form in which two sources can be compared."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

from pagefleet_local.assets import helm
from pagefleet_local.chart.source import MANIFESTS

CHART = MANIFESTS.parent / "charts/pagefleet"
SYSTEM = "pagefleet-system"
Document = dict[str, Any]


def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a helm command; with `check` it must succeed."""
    done = subprocess.run([str(helm.binary()), *arguments], capture_output=True, text=True, check=False)
    assert not (check and done.returncode), f"helm {' '.join(arguments)}: {done.stderr or done.stdout}"
    return done


@functools.cache
def template(*flags: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `helm template` on the chart, in the namespace of the manifests."""
    return run("template", "pagefleet", str(CHART), "--namespace", SYSTEM, *flags, check=check)


def rendered(*flags: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(template(*flags).stdout) if document]


def named(documents: list[Document]) -> dict[tuple[str, str], Document]:
    """Return the objects by kind and name, with lists sorted where order means nothing, without the Namespace (Helm's own)."""
    objects = {(one["kind"], one["metadata"]["name"]): ordered(one) for one in documents if one["kind"] != "Namespace"}
    assert len(objects) == len([one for one in documents if one["kind"] != "Namespace"]), "two of a kind with one name"
    return objects


def ordered(node: Any) -> Any:
    """Sort variables, ports, volumes and mounts by their name or path; leave everything else as it is."""
    if isinstance(node, dict):
        return {key: ordered(value) for key, value in node.items()}
    if not isinstance(node, list):
        return node
    items = [ordered(item) for item in node]
    for keys in (("name",), ("mountPath",), ("port",)):
        if items and all(isinstance(item, dict) and set(keys) <= set(item) for item in items):
            return sorted(items, key=lambda item: str([item[key] for key in keys]))
    return items


def container(documents: list[Document], part: str) -> Document:
    (shipped,) = named(documents)["Deployment", f"pagefleet-{part}"]["spec"]["template"]["spec"]["containers"]
    return shipped


def kustomization(folder: Path, *components: str) -> Path:
    """Write a kustomization of the base and components in `folder` (kustomize reads relative paths only)."""
    up = "/".join([".."] * len(folder.parts[1:]))
    text = {
        "resources": [f"{up}{MANIFESTS}/base"],
        "components": [f"{up}{MANIFESTS}/components/{name}" for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return folder
