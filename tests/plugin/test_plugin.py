"""Protects `kubectl pagefleet` without a Python of the user's: the archive for this machine's platform is built as a release has it, and krew's
rules accept it. The command that kubectl then finds computes a plan, reads its own files, and names what is missing. `make nightly` runs this: it
takes minutes and needs a package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.krew import faults, install

from pagefleet_local.fleet.install import CHECKOUT
from pagefleet_local.publishing import archive, krew
from pagefleet_local.publishing.krew import Archive

PLAN = (
    "--layers",
    "32",
    "--heads",
    "32",
    "--kv-heads",
    "8",
    "--hidden",
    "4096",
    "--params",
    "8.03B",
    "--accelerator",
    "l4",
)
SIMULATE = ("--service", str(CHECKOUT / "examples/compliance-summaries.yaml"), "--trace", "builtin:compliance-summaries",
            "--profile", "h100-llama-8b", "--scalers", "ours")  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is installed as krew does it."""
    folder = tmp_path_factory.mktemp("plugin")
    made = archive.build(folder)
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    home, uri = "https://pagefleet.example.com", f"https://downloads.example.com/{made.name}"
    manifest = yaml.safe_load(krew.manifest("0.1.0", home, [Archive(*krew.platform_of(made.name), uri, digest)]))
    assert faults(krew.NAME, manifest) == []
    install(folder / "krew", manifest["spec"]["platforms"][0], made)
    return folder / "krew"


def kubectl(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """kubectl, on a machine without Python: its PATH has the plugin and nothing of this environment."""
    program = Path(sys.executable).parent / "kubectl"
    environment = {"PATH": f"{root / 'bin'}{os.pathsep}/usr/bin", "HOME": str(root), "COLUMNS": "160"}
    return subprocess.run(
        [program.resolve(), "pagefleet", *words], env=environment, capture_output=True, text=True, check=False
    )


def test_it_plans_and_simulates(root: Path) -> None:
    planned = kubectl(root, "plan", *PLAN)
    assert planned.returncode == 0, planned.stderr
    assert "1 x L4" in planned.stdout
    simulated = kubectl(root, "simulate", *SIMULATE)
    assert simulated.returncode == 0, simulated.stderr
    assert "profile h100-llama-8b" in simulated.stdout


def test_it_tells_that_there_is_no_cluster(root: Path) -> None:
    asked = kubectl(root, "status")
    assert asked.returncode == 1
    assert "the kubeconfig cannot be used" in asked.stderr


def test_every_library_is_there_with_its_licence(root: Path) -> None:
    described = list((root / "store/pagefleet/_internal").glob("*.dist-info"))
    assert {"pagefleet", "numpy", "aiohttp", "kubernetes", "rich"} <= {
        path.name.partition("-")[0] for path in described
    }
