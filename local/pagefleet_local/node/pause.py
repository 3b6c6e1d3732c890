"""The pause image: one static program that sleeps and reaps, built here once, packed as a docker-archive."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

from pagefleet_local.base import paths

IMAGE = "docker.io/pagefleet/pause:1"
SOURCE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void stop(int s) { (void)s; _exit(0); }
static void reap(int s) { (void)s; while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) { signal(SIGTERM, stop); signal(SIGINT, stop); signal(SIGCHLD, reap); for (;;) pause(); }
"""


def archive() -> Path:
    """The image's archive in the cache, built the first time (needs gcc)."""
    target = paths.cache() / "pause.tar"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        source, binary, image = Path(folder, "pause.c"), Path(folder, "pause"), Path(folder, "image.tar")
        source.write_text(SOURCE)
        subprocess.run(["gcc", "-Os", "-static", "-s", "-o", str(binary), str(source)], check=True)
        image.write_bytes(pack(binary.read_bytes()))
        image.rename(target)
    return target


def pack(program: bytes) -> bytes:
    """A docker-archive with one layer that holds `program` as /pause."""
    layer = _tar({"pause": program}, mode=0o755)
    digest = hashlib.sha256(layer).hexdigest()
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    return _tar({"config.json": configuration, "layer.tar": layer, "manifest.json": manifest}, mode=0o644)


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
