"""The clients that are tried against the engine, each in a virtual environment of its own below the cache: their versions
contradict each other's and ours."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

CACHE = Path(os.environ.get("PAGEFLEET_CACHE", Path.home() / ".cache" / "pagefleet")) / "clients"
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "openai_sdk": ("openai==3.54.0",),
    "anthropic_sdk": ("anthropic==2.12.0",),
    "langchain": ("langchain-openai==1.7.3", "langchain-anthropic==1.7.7"),
    "llama_index": ("llama-index-llms-openai-like==0.8.1",),
    "litellm": ("litellm==1.104.0",),
    "lm_eval": ("lm-eval[api]==0.4.13",),
    "guidellm": ("guidellm==0.8.1",),
}
# These find torch and transformers in our own environment: a second torch would be gigabytes.
WITH_OURS = ("lm_eval", "guidellm")


def python(client: str) -> Path:
    """The interpreter of a client's environment, which is made when it is not there. Raises CalledProcessError."""
    packages = PACKAGES[client]
    folder = CACHE / f"{client}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:12]}"
    if not (folder / "complete").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        if client in WITH_OURS:
            packages_of = next((folder / "lib").glob("python3*")) / "site-packages"
            (packages_of / "ours.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        with tempfile.TemporaryDirectory() as empty:  # no configuration of the checkout's
            command = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *packages]
            subprocess.run(command, check=True, cwd=empty)
        (folder / "complete").touch()
    return folder / "bin/python"
