"""The layers of a manifest that can hold a model: files and archives.

Sources: https://github.com/opencontainers/image-spec, https://github.com/modelpack/model-spec (ModelPack), https://github.com/kitops-ml/kitops
(KitOps), and the annotations of https://oras.land.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
MODELPACK, KITOPS = "application/vnd.cncf.model.", "application/vnd.kitops.modelkit."
# What ModelPack and KitOps pack beside a model.
BESIDE = tuple(f"{kind}{name}." for kind in (MODELPACK, KITOPS) for name in ("code.v1", "dataset.v1"))
TITLE, FILE_PATH = "org.opencontainers.image.title", "org.cncf.model.filepath"
UNPACK = "io.deis.oras.content.unpack"  # of a folder that `oras push` has packed
ARCHIVE = re.compile(r".*[.+](tar|tar\.gzip|tar\+gzip|tar\.zstd|tar\+zstd)")
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as `uname -m` and as images name them


@dataclass(frozen=True)
class Layer:
    """`digest` is hexadecimal (SHA-256). `name` is the path of the one file that it is, "" for an archive."""

    digest: str
    size: int
    name: str = ""


def layers(document: Any) -> list[Layer]:
    """The layers of a manifest, in its order. Raises ValueError for a document of another form."""
    listed = document.get("layers") if isinstance(document, Mapping) else None
    if not isinstance(listed, list):
        raise ValueError("it is no manifest of an artifact or an image")
    return list(_layers(listed))


def _layers(listed: list[Any]) -> Iterator[Layer]:
    for one in listed:
        digest, size = _descriptor(one)
        media, told = str(one.get("mediaType") or ""), one.get("annotations")
        annotations = told if isinstance(told, Mapping) else {}
        path = str(annotations.get(FILE_PATH) or annotations.get(TITLE) or "")
        archive = ARCHIVE.fullmatch(media) is not None
        if media.startswith(BESIDE):
            continue
        if media.startswith((MODELPACK, KITOPS)):
            packed = archive
        else:  # oras gives a file the type of an uncompressed layer where its user names none; a folder it compresses
            packed = annotations.get(UNPACK) == "true" or (archive and (not path or media.endswith("gzip")))
        if packed:
            yield Layer(digest, size)
        elif path:
            yield Layer(digest, size, path.removeprefix("./"))


def of_platform(document: Any, machine: str) -> str | None:
    """The digest of the manifest for this machine (`uname -m`) where the document is an index of several; None for a manifest. Raises
    ValueError."""
    listed = document.get("manifests") if isinstance(document, Mapping) else None
    if not isinstance(listed, list):
        return None
    found: dict[str, str] = {}
    wanted = ARCHITECTURES.get(machine, machine)
    for one in listed:
        digest, _ = _descriptor(one)
        platform = one.get("platform")
        name = str(platform.get("architecture") or "") if isinstance(platform, Mapping) else ""
        if name != "unknown":  # of what a builder attests about an image
            found.setdefault(name, digest)
    if wanted in found:
        return found[wanted]
    if len(found) == 1:  # a model is the same on every machine
        return next(iter(found.values()))
    raise ValueError(f"it has no manifest for {wanted}, only for {', '.join(sorted(found)) or 'none'}")


def _descriptor(one: Any) -> tuple[str, int]:
    """Digest and size. Raises ValueError."""
    digest = DIGEST.fullmatch(str(one.get("digest"))) if isinstance(one, Mapping) else None
    size = one.get("size") if isinstance(one, Mapping) else None
    if digest is None or type(size) is not int or size < 0:
        raise ValueError("it lists a layer without a size or a SHA-256 digest")
    return digest[1], size
