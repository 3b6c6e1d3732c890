"""Protects that the served OpenAPI document describes the engine: whatever schemathesis sends, it gets no 5xx, no status
that the document lacks, and no answer in another form.

PAGEFLEET_API_CASES sets how many cases are sent at least (nightly: 50,000), PAGEFLEET_API_SEED the first seed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.engine.api_process import NAME, Serving, make_model, serving

from pagefleet_engine.api.endpoints import openapi
from pagefleet_engine.api.parameters.generation import CHAT, COMPLETION, NOT_SUPPORTED

EXAMPLES, NIGHTLY_EXAMPLES = 60, 400  # of each operation and phase
AT_ONCE = os.cpu_count() or 1
CASES = int(os.environ.get("PAGEFLEET_API_CASES", "0"))
SEED = int(os.environ.get("PAGEFLEET_API_SEED", "1"))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# These end or pause the server: what follows would rightly be a 503.
LEFT_OUT = ("/drain", "/sleep", "/wake_up")
# A request without time rightly ends with 504, and answers of thousands of tokens test nothing more than short ones.
# Nothing is maximised either: shrinking what is "best so far" was four fifths of the time.
HOOKS = """
import schemathesis
from hypothesis.internal.conjecture.engine import ConjectureRunner

ConjectureRunner.optimise_targets = lambda *_, **__: False  # False: no better case exists

@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, dict):
        case.body.pop("timeout", None)
        if case.path in ("/v1/completions", "/v1/chat/completions"):
            for name in ("max_tokens", "max_completion_tokens"):
                if not isinstance(case.body.get(name), int) or case.body[name] > 4:
                    case.body[name] = 4 if name == "max_tokens" or case.path.endswith("chat/completions") else None
            if case.path == "/v1/completions":
                case.body.pop("max_completion_tokens", None)
        limit = {"/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens"}.get(case.path)
        if limit is not None and isinstance(case.body.get(limit, 5), int) and case.body.get(limit, 5) > 4:
            case.body[limit] = 4
    if case.headers:
        case.headers.pop("x-request-timeout", None)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("openapi")
    flags = ("--max-model-len=2048", "--max-output-tokens=64", "--allow-runtime-adapters", f"--adapter-root={folder}")
    with serving(make_model(folder / "model"), folder / "termination", *flags) as running:
        yield running


def test_the_document_tells_of_every_parameter_and_every_route(served: Serving) -> None:
    document = json.loads(served.ask("GET", "/openapi.json").body)
    assert document == json.loads(json.dumps(openapi.document([NAME])))
    for path, table in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == set(table) | set(NOT_SUPPORTED)
    asked = {"model": NAME, "input": "x", "max_output_tokens": 1}
    for path, operations in document["paths"].items():
        for method in operations:
            pin = served.answer("/v1/cache/pin", {"model": NAME, "prompt": "x" * 64})["id"] if "{pin}" in path else ""
            stored = served.answer("/v1/responses", asked)["id"] if "{response}" in path else ""
            there = path.replace("{model}", NAME).replace("{response}", stored).replace("{pin}", pin)
            reply = served.ask(method.upper(), there) if path not in LEFT_OUT else None
            assert reply is None or reply.status not in (404, 405), path


def fuzzed(served: Serving, folder: Path, seed: int, examples: int, phases: str) -> int:
    """Return the number of cases that schemathesis sent. Fail when it reports a failure."""
    left_out = [flag for path in LEFT_OUT for flag in ("--exclude-path", path)]
    command = [
        str(Path(sys.executable).with_name("st")), "run", f"http://127.0.0.1:{served.port}/openapi.json",
        "--checks", CHECKS, "--phases", phases, "--max-examples", str(examples),
        "--continue-on-failure", "--request-timeout", "20", "--suppress-health-check", "all", "--seed", str(seed),
        "--no-shrink", "--generation-database", "none", *left_out,
    ]  # fmt: skip
    paths = {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(folder)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=3600, cwd=folder, env={**os.environ, **paths}
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    cases = re.search(r"(\d[\d,]*) generated", ended.stdout)
    assert cases is not None, ended.stdout[-3000:]
    return int(cases[1].replace(",", ""))


def test_schemathesis_finds_nothing(served: Serving, tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    cases = fuzzed(served, tmp_path, SEED, EXAMPLES, "examples,coverage,fuzzing")
    assert cases > 500
    seeds = itertools.count(SEED + 1)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # making the cases takes longer than answering them
        while cases < CASES:
            some = list(itertools.islice(seeds, AT_ONCE))
            cases += sum(pool.map(lambda seed: fuzzed(served, tmp_path, seed, NIGHTLY_EXAMPLES, "fuzzing"), some))
            sys.stdout.write(f"{time.strftime('%H:%M:%S')} {cases} cases of {CASES}\n")
    assert served.ask("GET", "/ready").status == 200
    assert served.metric("pagefleet_num_requests_running") == 0
