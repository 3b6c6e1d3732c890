"""Kubernetes' own programs. They come whole from the first of these places that has them: the folder of KUBEBUILDER_ASSETS, PATH, the
cache, the official release of a pinned version, a build of Debian's source package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.assets import debian, kubernetes_source, release
from pagefleet_local.assets.debian import AssetError
from pagefleet_local.base import paths
from pagefleet_local.base.console import CONSOLE

OLDEST_MINOR = 20
ASSETS = "KUBEBUILDER_ASSETS"
COMPONENTS, SOURCE_VERSION = kubernetes_source.COMPONENTS, kubernetes_source.VERSION


@dataclass(frozen=True)
class Binaries:
    """Where the programs are, and their minor version (20 for 1.20.2)."""

    folder: dict[str, Path]
    minor: int

    def __getitem__(self, name: str) -> Path:
        return self.folder[name]


def binaries(needed: tuple[str, ...] = COMPONENTS) -> Binaries:
    """Find, fetch or build the programs in `needed`. Raises AssetError, also for programs that are too old or of several versions."""
    found = _given(needed) or _cached(needed)
    if found is None:
        with debian.locked("kubernetes"):
            found = _cached(needed) or _made(needed)
    return Binaries(found, common_minor({name: minor_of(path) for name, path in found.items()}))


def _given(needed: tuple[str, ...]) -> dict[str, Path] | None:
    """The programs of KUBEBUILDER_ASSETS, else of PATH. envtest's folder lacks some: then it is not used at all, for an API server of
    one version and a scheduler of another would be no Kubernetes that anybody runs."""
    assets = os.environ.get(ASSETS)
    if assets:
        lacking = [name for name in needed if not (Path(assets) / name).is_file()]
        if not lacking:
            return {name: Path(assets) / name for name in needed}
        CONSOLE.print(f"- {ASSETS}={assets} lacks {', '.join(lacking)}, and is not used")
    on_path = {name: path for name in needed if (path := shutil.which(name))}
    return {name: Path(path) for name, path in on_path.items()} if len(on_path) == len(needed) else None


def _cached(needed: tuple[str, ...]) -> dict[str, Path] | None:
    """The programs of the cache: the official release before the build."""
    for folder in (release.folder(), _built()):
        if all((folder / name).is_file() for name in needed):
            return {name: folder / name for name in needed}
    return None


def _built() -> Path:
    return paths.cache() / f"kubernetes-{SOURCE_VERSION}"


def _made(needed: tuple[str, ...]) -> dict[str, Path]:
    """Fetch the official release; build where it cannot be reached."""
    try:
        release.fetch(COMPONENTS)
    except release.Unreachable as error:
        CONSOLE.print(f"- {error}; building {SOURCE_VERSION} from Debian's source package")
        kubernetes_source.build(_built())
    found = _cached(needed)
    if found is None:
        raise AssetError(f"{_built()} lacks one of {', '.join(needed)}: delete the folder")
    return found


def minor_of(program: Path) -> int:
    """The minor version that a program prints. Raises AssetError."""
    try:
        output = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise AssetError(f"{program} cannot be run: {error.strerror}") from error
    match = re.search(r"v1\.(\d+)\.", output)
    if not match:
        raise AssetError(f"{program} --version printed {output.strip()!r}: no Kubernetes version in it")
    return int(match.group(1))


def common_minor(minors: dict[str, int]) -> int:
    """The minor version of all programs. Raises AssetError where there are several, or it is too old. Pure."""
    if len(set(minors.values())) > 1:
        told = ", ".join(f"{name} 1.{minor}" for name, minor in minors.items())
        raise AssetError(
            f"the programs of Kubernetes are of several versions ({told}): set {ASSETS} to a folder with those of one"
        )
    minor = next(iter(minors.values()))
    if minor < OLDEST_MINOR:
        raise AssetError(
            f"Kubernetes 1.{minor} is too old: 1.{OLDEST_MINOR} or newer is needed; set {ASSETS} to a folder with its programs"
        )
    return minor
