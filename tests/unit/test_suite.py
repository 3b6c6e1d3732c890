"""Protects the parts of the tests that run side by side: no folder of tests is left out, none is run twice, planes share no folder
and no network, a failure is reported and ends nothing else, and a stop ends whatever a part has started."""

from __future__ import annotations

import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from suite import main
from suite.parts import PARTS, Part, chosen
from suite.processes import Outcome, Runner
from support.private import command

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
# They need a machine that few have, or an environment of their own for each client.
NIGHT = {"gpu", "nixl", "vllm", "clients", "plugin"}


@dataclass(frozen=True)
class Script(Part):
    """Runs Python sources instead of tests."""

    def commands(self, options: object = ()) -> list[list[str]]:
        return [[sys.executable, "-c", *run] for run in self.runs]


def script(name: str, *sources: str) -> Script:
    return Script(name, "what it shows", tuple((source,) for source in sources))


def test_every_folder_of_tests_is_run_once() -> None:
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")} - NIGHT
    recipes = re.findall(r"^(check|test|test-browser):(.*?)^\.PHONY", MAKEFILE, re.MULTILINE | re.DOTALL)
    lines = [line for _, recipe in recipes for line in recipe.splitlines()]
    parts = [name for line in lines if "$(SUITE)" in line for name in line.partition("$(SUITE)")[2].split()]
    assert sorted(parts) == sorted(part.name for part in PARTS)
    by_make = [line for line in lines if "$(PYTEST)" in line]
    by_parts = [" ".join(run) for part in PARTS if part.tests for run in part.runs]
    ran = [name for line in (*by_make, *by_parts) for name in re.findall(r"tests/(\w+)", line)]
    assert sorted(ran) == sorted([*folders, "cluster"])
    marks = [run[run.index("-m") + 1] for part in PARTS for run in part.runs if "-m" in run]
    assert sorted(marks) == ["e2e", "not e2e"], "the two halves of tests/cluster"


def test_what_measures_times_gives_way_to_nothing() -> None:
    assert {part.name for part in PARTS if part.nice} == {"engine", "static", "unit"}
    (line,) = chosen(["unit"])[0].commands()
    assert line[:3] == ["nice", "-n", "19"]


def test_each_control_plane_has_its_own_network_and_folders() -> None:
    planes = [part for part in PARTS if part.private]
    states = [word for part in planes for line in part.commands() for word in line if "TEST_STATE=" in word]
    assert states == [f"PAGEFLEET_TEST_STATE=/var/lib/pagefleet-{part.name}" for part in planes]
    assert all(line[:2] == ["unshare", "--net"] for part in planes for line in part.commands())
    assert command("x", ["true"])[-4:] == [
        "env",
        "PAGEFLEET_PRIVATE=x",
        "PAGEFLEET_TEST_STATE=/var/lib/pagefleet-x",
        "true",
    ]


def test_names_choose_parts() -> None:
    assert [part.name for part in chosen(["plane", "node"])] == ["node", "plane"]
    assert chosen([]) == list(PARTS)
    with pytest.raises(
        ValueError,
        match="no part is called nodes; the parts are contract, crd, engine, faults, node, plane, static, unit",
    ):
        chosen(["nodes"])


def test_a_failure_is_reported_and_ends_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    fails = "print('one'); print('E   assert 1 == 2'); print('FAILED tests/x.py::test_y'); raise SystemExit(3)"
    parts = [script("a", fails, "print('two')"), script("longer", "print('three'); print('E   caught')")]
    assert main.played(parts, 2) == main.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert {"a      | one", "a      | two", "longer | three"} <= {line[len("  0:00 ") :] for line in lines}
    assert any(line.startswith("a      run 1: exit status 3") for line in lines)
    end = lines[-5:]  # also the last lines of a log say what failed
    assert end[:2] == ["a      | E   assert 1 == 2", "a      | FAILED tests/x.py::test_y"]
    assert not any(line.startswith("longer | E") for line in lines)
    assert any(line.startswith("longer passed") for line in lines)
    assert re.match(r"all    CPU use \d+%", lines[-1])
    assert main.played(parts[1:], 1) == 0


def test_a_stop_ends_what_a_part_has_started_and_starts_nothing_more(tmp_path: Path) -> None:
    """As Ctrl-C does: the program takes down what it has started. Its child is in its process group."""
    child = "import subprocess, time; subprocess.Popen(['sleep', '600'])\n"
    waits = "try:\n    print('runs', flush=True)\n    time.sleep(600)\n"
    down = f"except KeyboardInterrupt:\n    open({str(tmp_path / 'down')!r}, 'w')\n"
    shown, outcomes = threading.Event(), list[Outcome]()
    runner = Runner(lambda name, line: shown.set())
    part = script("a", child + waits + down, f"open({str(tmp_path / 'more')!r}, 'w')")
    thread = threading.Thread(target=lambda: outcomes.append(runner.run(part, ())))
    thread.start()
    assert shown.wait(30)
    began = time.monotonic()
    runner.stop()
    thread.join(30)
    assert [outcome.how for outcome in outcomes] == ["stopped"]
    assert (tmp_path / "down").exists() and not (tmp_path / "more").exists()
    assert time.monotonic() - began < 30
