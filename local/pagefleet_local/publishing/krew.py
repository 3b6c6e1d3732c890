"""The manifest by which krew, kubectl's manager of plugins, installs `kubectl pagefleet`. Pure.

Source: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import yaml

NAME, PROGRAM = "pagefleet", "kubectl-pagefleet"
PLATFORMS = (("linux", "amd64"), ("linux", "arm64"), ("darwin", "amd64"), ("darwin", "arm64"))
VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
FILE = re.compile(rf"{PROGRAM}_([a-z]+)_([a-z0-9]+)\.tar\.gz")
SHORT = "Show, roll out and plan fleets of LLM inference"
LONG = """\
Shows InferenceServices of Pagefleet and their rollouts, with the numbers by
which a canary is judged; asks the operator to promote, pause, abort or retry;
measures servers; and plans capacity. It writes nothing but the annotation of
an action.
"""
CAVEATS = """\
It needs get and list of inferenceservices.pagefleet.io, patch for actions,
and list of controllerrevisions for export.
"""

# What Artifact Hub shows of a plugin: https://artifacthub.io/docs/topics/annotations/krew/
SHOWN = {
    "artifacthub.io/category": "ai-machine-learning",
    "artifacthub.io/displayName": "Pagefleet",
    "artifacthub.io/keywords": "- llm\n- inference\n- canary\n",
    "artifacthub.io/license": "Apache-2.0",
}


class _Blocks(yaml.SafeDumper):
    """Writes texts of several lines as they are."""


_Blocks.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


class PublishingError(Exception):
    """What cannot be published, with what is allowed."""


@dataclass(frozen=True)
class Archive:
    """One platform's archive, in Go's words for systems and processors. `sha256` is hexadecimal."""

    os: str
    arch: str
    uri: str
    sha256: str


def file_name(system: str, arch: str) -> str:
    """The name of a platform's archive. Raises PublishingError."""
    if (system, arch) not in PLATFORMS:
        known = ", ".join("/".join(one) for one in PLATFORMS)
        raise PublishingError(f"{system}/{arch} is no platform of the plugin; those are {known}")
    return f"{PROGRAM}_{system}_{arch}.tar.gz"


def platform_of(name: str) -> tuple[str, str]:
    """The platform of an archive by its name. Raises PublishingError."""
    if (match := FILE.fullmatch(name)) is None or (match[1], match[2]) not in PLATFORMS:
        expected = ", ".join(file_name(*one) for one in PLATFORMS)
        raise PublishingError(f"{name} is no archive of the plugin; those are named {expected}")
    return match[1], match[2]


def manifest(version: str, homepage: str, archives: Iterable[Archive]) -> str:
    """The text of `pagefleet.yaml`. Raises PublishingError."""
    if not VERSION.fullmatch(version):
        raise PublishingError(f"version {version} must be like 1.2.3 or 1.2.3-rc.1")
    if not homepage.startswith("https://"):
        raise PublishingError(f"homepage {homepage!r} must begin with https://")
    platforms = [_platform(one) for one in sorted(archives, key=lambda one: (one.os, one.arch))]
    if not platforms:
        raise PublishingError("there is no archive of any platform")
    document = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME, "annotations": SHOWN},
        "spec": {
            "version": f"v{version}",
            "homepage": homepage,
            "shortDescription": SHORT,
            "description": LONG,
            "caveats": CAVEATS,
            "platforms": platforms,
        },
    }
    return yaml.dump(document, Dumper=_Blocks, sort_keys=False)


def _platform(archive: Archive) -> dict[str, object]:
    if not archive.uri.startswith("https://"):
        raise PublishingError(f"URL {archive.uri!r} must begin with https://")
    return {
        "selector": {"matchLabels": {"os": archive.os, "arch": archive.arch}},
        "uri": archive.uri,
        "sha256": archive.sha256,
        "bin": PROGRAM,
    }
