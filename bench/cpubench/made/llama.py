"""llama.cpp from Debian's newest packages, unpacked into a folder and run through the loader that comes with them.

Nothing is installed and nothing is compiled: apt-get keeps its lists in the folder, and the packages bring their own C library, so
the programs run on an older Debian too.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from pagefleet_kernels.compile import features

PACKAGE = "llama.cpp-tools"
SOURCE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main\n"
MADE = "version"  # the file of the folder that is written last
# The builds of ggml's CPU backend, best first, with the flags of /proc/cpuinfo that each needs. ggml chooses alike where its
# packages are installed; unpacked ones are found only by name.
VARIANTS: tuple[tuple[str, frozenset[str]], ...] = (
    ("sapphirerapids", frozenset({"avx512f", "avx512_bf16", "amx_int8", "amx_tile"})),
    ("zen4", frozenset({"avx512f", "avx512vbmi", "avx512_vnni", "avx512_bf16"})),
    ("icelake", frozenset({"avx512f", "avx512vbmi", "avx512_vnni"})),
    ("cascadelake", frozenset({"avx512f", "avx512_vnni"})),
    ("skylakex", frozenset({"avx512f", "avx512bw", "avx512dq"})),
    ("alderlake", frozenset({"avx2", "avx_vnni"})),
    ("haswell", frozenset({"avx2", "fma"})),
    ("x64", frozenset()),
)


def made(folder: Path) -> bool:
    return (folder / MADE).exists()


def version(folder: Path) -> str:
    """Return the version of Debian's package, as it was unpacked."""
    return (folder / MADE).read_text().strip() if made(folder) else "not made"


def make(folder: Path) -> str | None:
    """Download and unpack the packages. Return why that failed, or None."""
    for part in ("lists/partial", "archives/partial", "root"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(SOURCE)
    (folder / "status").touch()  # no package counts as installed, so that all dependencies come along
    (folder / "apt.conf").write_text(_configuration(folder))
    apt = ["apt-get", "-qq", "-c", str(folder / "apt.conf")]
    install = [*apt, "install", "--yes", "--download-only", "--no-install-recommends", PACKAGE]
    try:
        for command in ([*apt, "update"], install):
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                return f"{' '.join(command[4:])} ended with {ended.returncode}: {ended.stderr.strip()[-400:]}"
        for archive in sorted((folder / "archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / "root")], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    archive = next((folder / "archives").glob(f"{PACKAGE}_*.deb"))
    (folder / MADE).write_text(archive.name.split("_")[1] + "\n")
    for archive in (folder / "archives").glob("*.deb"):
        archive.unlink()
    return None


def _configuration(folder: Path) -> str:
    """apt-get's settings by which it writes only below `folder`, as whoever calls it."""
    settings = {
        "Dir::State": folder, "Dir::State::lists": folder / "lists", "Dir::State::status": folder / "status",
        "Dir::Cache": folder, "Dir::Cache::archives": folder / "archives", "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-", "APT::Sandbox::User": "",
    }  # fmt: skip
    return "".join(f'{name} "{value}";\n' for name, value in settings.items())


def command(folder: Path, program: str) -> list[str]:
    """The beginning of a command line for one of the programs. Raises StopIteration where the packages are not unpacked."""
    libraries = next((folder / "root/usr/lib").glob("*-linux-gnu*"))
    loader = next(libraries.glob("ld-linux*.so.*"))
    paths = (libraries, libraries / "llama", libraries / "ggml")
    return [
        "env", f"GGML_BACKEND_PATH={backend(libraries / 'ggml/backends0', features())}",
        str(loader), "--library-path", ":".join(map(str, paths)), str(folder / "root/usr/bin" / program),
    ]  # fmt: skip


def backend(folder: Path, flags: frozenset[str]) -> Path:
    """The best build of the CPU backend for a processor's flags. Raises StopIteration where none of them is there."""
    builds = (folder / f"libggml-cpu-{name}.so" for name, needed in VARIANTS if needed <= flags)
    return next(path for path in builds if path.exists())


def quantise(folder: Path, source: Path, target: Path, form: str) -> None:
    """Write a GGUF file in another format, by way of a file beside it. Raises CalledProcessError."""
    unfinished = target.with_suffix(".new")
    target.parent.mkdir(parents=True, exist_ok=True)
    line = [*command(folder, "llama-quantize"), "--allow-requantize", str(source), str(unfinished), form]
    subprocess.run(line, check=True, capture_output=True)
    unfinished.rename(target)
