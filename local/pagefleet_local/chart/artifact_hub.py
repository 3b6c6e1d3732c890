"""What Artifact Hub shows of the chart: its annotations in Chart.yaml.

Source: https://artifacthub.io/docs/topics/annotations/helm/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from pagefleet_local.chart.source import MANIFESTS

CRDS = MANIFESTS.parent / "crds"
PREFIX = "artifacthub.io/"


def chart_annotations(version: str, license_name: str, images: Mapping[str, str]) -> str:
    """The block `annotations:` of a Chart.yaml. `images` are references by the name of their part."""
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    sample = yaml.safe_load((MANIFESTS / "samples/chat.yaml").read_text())
    lists = {
        "crds": [_crd(one) for one in definitions],
        "crdsExamples": [sample],
        "images": [{"name": name, "image": image} for name, image in sorted(images.items())],
    }
    values: dict[str, str] = {
        "category": "ai-machine-learning",
        "license": license_name,
        "operator": "true",
        "operatorCapabilities": "Auto Pilot",
        "prerelease": "true" if version.startswith("0.") else "false",
        **{name: yaml.safe_dump(entries, sort_keys=False, width=1000) for name, entries in lists.items()},
    }
    lines = ["annotations:"]
    for name, value in sorted(values.items()):
        if "\n" in value:
            lines += [f"  {PREFIX}{name}: |", *(f"    {line}" for line in value.rstrip("\n").split("\n"))]
        else:
            lines.append(f'  {PREFIX}{name}: "{value}"')
    return "\n".join(lines) + "\n"


def _crd(definition: Mapping[str, Any]) -> dict[str, str]:
    spec = definition["spec"]
    (version,) = spec["versions"]
    kind = spec["names"]["kind"]
    return {
        "kind": kind,
        "version": version["name"],
        "name": definition["metadata"]["name"],
        "displayName": kind,
        "description": version["schema"]["openAPIV3Schema"]["description"],
    }
