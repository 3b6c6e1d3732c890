"""Each client does its ordinary work against a real engine: its script in work/ ends without an error.

The first run of each downloads the client (venvs.py); `make nightly` runs this.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import venvs
from support.engine.api_process import NAME, Serving, make_model, serving

WORK = Path(__file__).with_name("work")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's."""
    return tmp_path_factory.mktemp("clients") / "model"


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Serving]:
    with serving(make_model(folder), folder.with_name("termination"), "--max-model-len=4096") as running:
        yield running


@pytest.mark.parametrize("client", sorted(venvs.PACKAGES))
def test_a_client_does_its_ordinary_work(served: Serving, folder: Path, client: str, tmp_path: Path) -> None:
    interpreter = venvs.python(client)
    environment = {
        "PATH": f"{interpreter.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "ENGINE_MODEL": NAME,
        "ENGINE_URL": f"http://127.0.0.1:{served.port}", "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "ENGINE_FOLDER": str(folder),
    }  # fmt: skip
    script = str(WORK / f"{client}.py")
    command = [str(interpreter), "-P", script]  # -P: the scripts have the names of what they import
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-6000:]}"
