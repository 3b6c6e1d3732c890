"""Protects the layout: source roots are no packages (an `operator/__init__.py` would shadow the standard library's
`operator`), packages have at most 15 modules and say what they are for, and no two packages import each other in a circle."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOTS = ("contract", "operator", "engine", "kernels", "gateway", "local")
MAX_MODULES = 15
PACKAGES = sorted(path.parent for root in ROOTS for path in (ROOT / root).rglob("__init__.py"))
SHIPPED = (
    "pagefleet_contract", "pagefleet_operator", "pagefleet_cli", "pagefleet_fetch", "pagefleet_sidecar", "pagefleet_simulator", "pagefleet_observability", "pagefleet_reference",
    "pagefleet_gateway", "pagefleet_batches", "pagefleet_engine", "pagefleet_kernels", "pagefleet_local",
)  # fmt: skip


@pytest.mark.parametrize("root", ROOTS)
def test_a_source_root_is_no_package(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists()


def test_the_standard_library_imports_from_the_checkout() -> None:
    """`import collections` needs the real `operator`, also with the checkout first on the path."""
    code = "import sys; sys.path.insert(0, ''); import collections, operator; operator.itemgetter(0)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_only_engine_and_kernels_import_torch() -> None:
    """The operator's and the gateway's images hold no torch."""
    code = (
        "import sys, pagefleet_operator.main, pagefleet_gateway.main\n"
        "sys.exit(bool({'torch', 'transformers', 'triton'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_operator_s_image_holds_what_the_load_test_runs() -> None:
    """`pagefleet bench` runs from it: what it imports is in the operator's extra, and nothing heavy comes along."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {requirement.split(">")[0] for requirement in extras["operator"]}
    assert {"aiohttp", "rich", "typer"} <= named
    code = (
        "import sys, pagefleet_cli.main\n"
        "sys.exit(bool({'torch', 'numpy', 'matplotlib', 'gguf', 'huggingface_hub', 'kubernetes'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_is_small_and_says_what_it_is_for(package: Path) -> None:
    modules = [path for path in package.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MAX_MODULES
    text = (package / "__init__.py").read_text()
    assert text.startswith('"""'), "a room's __init__.py begins with a docstring"
    stated = [line for line in text.split('"""')[1].splitlines() if line.strip()]
    assert len(stated) >= 3, "three lines: what it holds, what it decides, what it never does"
    assert not {"build", "utils", "helpers", "common_utils"} & {package.name}


@pytest.mark.parametrize("root", SHIPPED)
def test_packages_import_one_way(root: str) -> None:
    """A package is its own modules: not those of packages inside of it."""
    graph = grimp.build_graph(root)
    packages = {module for module in graph.modules if graph.find_children(module)}
    arrows: dict[str, set[str]] = {}
    for module in graph.modules:
        others = graph.find_modules_directly_imported_by(module)
        ours = arrows.setdefault(_package(module, packages), set())
        ours.update(_package(other, packages) for other in others)
    open_ends = {name: others - {name} for name, others in arrows.items()}
    while leaves := [name for name, others in open_ends.items() if not others]:
        open_ends = {name: others - set(leaves) for name, others in open_ends.items() if name not in leaves}
    assert not open_ends, "these packages import each other in a circle"


def _package(module: str, packages: set[str]) -> str:
    return module if module in packages else module.rpartition(".")[0]
