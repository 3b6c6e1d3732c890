"""What Artifact Hub takes of annotations, restated from its sources (internal/tracker/source/helm and krew, internal/pkg) and its pages
https://artifacthub.io/docs/topics/annotations/. It leaves a package out whose annotations break a rule, and says so to its owners only."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml

PREFIX = "artifacthub.io/"
CATEGORIES = {
    "ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security", "storage",
    "streaming-messaging", "skip-prediction",
}  # fmt: skip
CAPABILITIES = {"basic install", "seamless upgrades", "full lifecycle", "deep insights", "auto pilot"}
BOTH = {"category", "changes", "license", "links", "maintainers", "recommendations", "screenshots"}
KNOWN = {
    "helm": BOTH | {"alternativeName", "containsSecurityUpdates", "crds", "crdsExamples", "images", "operator", "operatorCapabilities",
                    "prerelease", "signKey"},
    "krew": BOTH | {"displayName", "keywords", "provider", "readme"},
}  # fmt: skip
BOOLEANS, LISTS = (
    {"operator", "prerelease", "containsSecurityUpdates"},
    {"crds", "crdsExamples", "images", "keywords", "links"},
)
IMAGE = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")


def faults(kind: str, annotations: Mapping[str, object]) -> list[str]:
    """Why the annotations of a package are refused, or say nothing; `kind` is helm or krew."""
    found = [f"{name} is not text" for name, value in annotations.items() if not isinstance(value, str)]
    given = {name.removeprefix(PREFIX): str(value) for name, value in annotations.items() if name.startswith(PREFIX)}
    found += [f"{name} is not known" for name in given.keys() - KNOWN[kind]]
    if given.get("category", "skip-prediction") not in CATEGORIES:
        found.append("category is not one of Artifact Hub's")
    if given.get("operatorCapabilities", "Auto Pilot").lower() not in CAPABILITIES:
        found.append("operatorCapabilities is not one of Artifact Hub's")
    found += [f"{name} is no truth value" for name in BOOLEANS & given.keys() if given[name] not in ("true", "false")]
    for name in LISTS & given.keys():
        if not isinstance(entries := yaml.safe_load(given[name]), list):
            found.append(f"{name} is no list")
        elif name == "images":
            found += [f"image {one}" for one in entries if not IMAGE.fullmatch(str(one.get("image", "")))]
    return found
