"""Protects the source roots: an `operator/__init__.py` would shadow the standard library's `operator`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("root", ["contract", "operator", "engine", "kernels", "gateway", "local"])
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
