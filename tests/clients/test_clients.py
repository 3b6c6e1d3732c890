"""Each client does its ordinary work against a real engine: its script in work/ ends without an error.

The first run of each downloads the client (venvs.py); `make nightly` runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import venvs
from support.engine.api_process import NAME, Serving, make_model, serving

from pagefleet_cli.bench import baseline, exports
from pagefleet_cli.bench.profile import Profile
from pagefleet_cli.bench.run import Run
from pagefleet_cli.bench.store import SavedRun

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
    _work(served, folder, client, tmp_path)


def test_guidellm_and_pagefleet_bench_read_each_other_s_reports(served: Serving, folder: Path, tmp_path: Path) -> None:
    """guidellm's own classes load the written report, and what they compute of a request is what was measured."""
    interpreter = _work(served, folder, "guidellm", tmp_path)
    theirs = baseline.read(tmp_path / "report.json").before
    assert isinstance(theirs, Run)
    assert len(theirs.samples) == 3
    assert all(one.ttft and 0 < one.ttft <= one.e2e and one.output_tokens for one in theirs.samples)
    saved = SavedRun(theirs, Profile(), "http://x/v1", NAME, "2026-11-14T10:00:00+00:00")
    exports.guidellm(tmp_path / "ours.json", saved)
    loading = (
        "import json, guidellm.benchmark; from guidellm.benchmark.schemas.report import GenerativeBenchmarksReport as Report;"
        "report = Report.load_file('ours.json').benchmarks[0];"
        "print(json.dumps([one.time_to_first_token_ms for one in report.requests.successful]))"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [str(interpreter), "-c", loading]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-6000:]
    loaded = json.loads(ended.stdout.splitlines()[-1])
    assert loaded == pytest.approx([1000 * (one.ttft or 0) for one in theirs.samples], rel=1e-3)


def _work(served: Serving, folder: Path, client: str, tmp_path: Path) -> Path:
    """Run a client's script, which must succeed; returns the client's interpreter."""
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
    return interpreter
