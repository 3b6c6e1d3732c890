"""Protects the images: they are built again when their source changed and only then; the CPU operations are compiled for
the image, and no compiler is in it."""

from __future__ import annotations

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pagefleet_kernels.compile import INSTRUCTIONS
from pagefleet_local.fleet.install import CHECKOUT
from pagefleet_local.images import wheels

OPERATIONS = "kernels/pagefleet_kernels/cpu"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("pyproject.toml", "README.md", "images/Dockerfile", "images/runtime.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    for name in (
        f"{Path(OPERATIONS).parent}/compile.py",
        f"{OPERATIONS}/source/ops.cpp",
        "engine/e.py",
        "operator/o.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one\n")
    monkeypatch.setattr(wheels, "CHECKOUT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", [f"{OPERATIONS}/source/ops.cpp", f"{Path(OPERATIONS).parent}/compile.py", "engine/e.py"]
)
def test_changed_source_makes_another_engine_image_and_no_other_operator_image(checkout: Path, name: str) -> None:
    engine, operator = wheels.source_key("engine"), wheels.source_key("operator")
    (checkout / name).write_text("two\n")
    assert wheels.source_key("engine") != engine
    assert wheels.source_key("operator") == operator


@pytest.mark.parametrize(
    "name", ["libpagefleet_cpu.avx2.so", ".libpagefleet_cpu.avx2.so.4711", "__pycache__/build.pyc"]
)
def test_what_was_compiled_beside_the_source_makes_no_other_image(checkout: Path, name: str) -> None:
    before = wheels.source_key("engine")
    (checkout / OPERATIONS / name).parent.mkdir(exist_ok=True)
    (checkout / OPERATIONS / name).write_bytes(b"\x7fELF")
    assert wheels.source_key("engine") == before


def stages() -> dict[str, tuple[str, str]]:
    """Return name -> (the stage it starts from, its instructions)."""
    text = (CHECKOUT / "images/Dockerfile").read_text()
    parts = re.split(r"^FROM (\S+) AS (\S+)$", text, flags=re.MULTILINE)[1:]
    return {parts[at + 1]: (parts[at], parts[at + 2]) for at in range(0, len(parts), 3)}


def origin(image: str) -> tuple[str, str]:
    """Return the image from which an image's stages begin, and all their instructions."""
    known, name, text = stages(), image, ""
    while name in known:
        text += known[name][1]
        name = known[name][0]
    return name, text


@pytest.mark.parametrize("image", ["operator", "gateway", "engine-cpu", "engine-cpu-smollm2"])
def test_an_image_is_made_of_what_is_copied_into_nothing(image: str) -> None:
    """So that no image holds a shell, a package manager or a compiler."""
    began, text = origin(image)
    assert began == "scratch"
    assert not re.search(r"^RUN|apt-get|g\+\+", text, flags=re.MULTILINE)
    assert "USER 65532:65532" in text


def test_the_image_for_gpus_has_the_compiler_that_triton_calls_and_no_other() -> None:
    began, text = origin("engine-cuda")
    assert began == "${BASE}"
    assert "gcc libc6-dev" in text
    assert "g++" not in text
    assert "USER 65532:65532" in text


@pytest.mark.parametrize("image", ["engine-cpu", "engine-cpu-smollm2", "engine-cuda"])
def test_engines_hold_the_compiled_operations(image: str) -> None:
    assert "COPY --from=own-engine /opt/pagefleet/" in origin(image)[1]
    assert "COPY --from=operations /compiled/" in stages()["own-engine"][1]


def test_the_image_takes_the_library_of_every_instruction_set() -> None:
    taken = stages()["operations"][1]
    assert "find pagefleet_kernels/cpu -name 'libpagefleet_cpu.*.so' -exec mv {} /compiled/" in taken
    for one in INSTRUCTIONS:
        assert fnmatch(one.library.name, "libpagefleet_cpu.*.so")


def test_the_gateway_holds_its_compiled_filters() -> None:
    assert "COPY --from=own-gateway /opt/pagefleet/" in origin("gateway")[1]
    assert "COPY --from=filters /compiled/" in stages()["own-gateway"][1]
    assert "python3 -m pagefleet_gateway.envoy.module.library" in stages()["filters"][1]


def test_a_library_of_the_checkout_never_enters_the_build() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", stages()["operations"][1], flags=re.MULTILINE)
    package = str(Path(OPERATIONS).parent)
    assert copied == [f"{package}/__init__.py {package}/compile.py", f"{OPERATIONS}/source/"]
