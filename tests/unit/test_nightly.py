"""Protects `make nightly`: nothing that checks itself is missing in its table, a stopped night goes on where it was, a result
holds only for its sources, what cannot run here is named with the reason, and the report has what a reader needs."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from faults.rows import PROGRAMS
from nightly import fuzz, machine, main, runner
from nightly.jobs import JOBS, Job, Need
from nightly.plan import Result, Step, chosen, filled, left_seconds, plan, with_result
from nightly.progress import Shown
from nightly.report import LAST_LINES, Night, last_lines, report, survivors
from nightly.stored import RESULTS, Store
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
A = Job("a", "that A works", 10, ("true",), 1, ("true", "--quick"), frozenset({Need.ROOT}))
B = Job("b-one", "that B works", 20, ("true",), 2, None, frozenset({Need.GPU}))
PASSED = Result("a", False, True, "", 300.0, "2026-01-01T00:00:00+00:00", "true")
FAILED = replace(PASSED, passed=False, how="exit status 1")


def steps(
    *results: Result,
    quick: bool = False,
    absent: dict[Need, str] | None = None,
    past: dict[tuple[str, bool], float] | None = None,
    again: bool = False,
) -> list[Step]:
    return plan([A, B], quick, results, absent or {}, past or {}, again)


def test_every_bench_that_checks_its_figures_is_a_job() -> None:
    used = {word for job in JOBS for word in job.command}
    on_gpu = re.search(r"^test-gpu:.*?\n\n", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert ("make", "test-gpu") in {job.command for job in JOBS} and on_gpu is not None
    for path in sorted((ROOT / "bench").glob("*.py")):
        text = path.read_text()
        if '"--check"' in text or "harness.parts" in text:
            assert f"bench/{path.name}" in used or f"bench/{path.name} --check" in on_gpu[0], path.name


def test_every_program_of_the_reliability_table_is_a_job() -> None:
    names = {job.name for job in JOBS}
    assert set(PROGRAMS) - names == {"outages"}, "the outages are the campaign's row 8"
    assert {"campaign", "proofs", "mutation", "random-order", "fuzz", "demo-2", "demo-6", "vllm", "gpu"} <= names
    assert len(names) == len(JOBS)


def test_each_command_names_what_there_is() -> None:
    for job in JOBS:
        for command in filter(None, (job.command, job.quick)):
            words = filled(command, python="python", bin=str(ROOT), seed="1", folder="out")
            assert not any("{" in word for word in words)
            for word, following in zip(words, [*words[1:], ""], strict=True):
                if word.startswith(("bench/", "tests/")):
                    assert (ROOT / word).exists(), word
                if word == "-m" and following != "pytest":
                    assert (ROOT / "tests" / f"{following.replace('.', '/')}.py").exists(), following


def test_names_choose_jobs_and_groups() -> None:
    assert chosen([A, B], []) == [A, B]
    assert chosen([A, B], ["b"]) == [B]
    assert chosen([A, B], ["b-one,a"]) == [A, B]
    with pytest.raises(ValueError, match="no job is called b-; the jobs are a, b-one"):
        chosen([A, B], ["b-"])


def test_what_has_a_result_does_not_run() -> None:
    assert [step.runs for step in steps()] == [True, True]
    assert [step.runs for step in steps(PASSED)] == [False, True]
    assert [step.runs for step in steps(FAILED)] == [False, True]
    assert [step.runs for step in steps(FAILED, again=True)] == [True, True]
    assert [step.runs for step in steps(FAILED, PASSED, again=True)] == [False, True], "the last result counts"
    assert steps(PASSED, quick=True)[0].runs, "a full result is none of a quick night"


def test_what_cannot_run_is_left_out_with_the_reason() -> None:
    assert steps(absent={Need.GPU: "there is none"})[1].left_out == "there is none"
    assert steps(quick=True)[1].left_out == "it has no quick size"
    assert steps(quick=True)[0].command == ("true", "--quick")


def test_the_time_left_follows_what_a_job_took_the_last_time() -> None:
    assert [step.expected_seconds for step in steps(past={("a", False): 42.0})] == [42.0, 1200.0]
    waiting = steps(past={("a", False): 42.0, ("b-one", False): 8.0})
    assert [left_seconds(waiting, elapsed) for elapsed in (0.0, 40.0, 99.0)] == [50.0, 10.0, 8.0]
    assert left_seconds([], 0.0) == 0.0


def test_results_are_stored_by_their_sources(tmp_path: Path) -> None:
    store = Store(tmp_path, "one")
    store.put(FAILED)
    store.put(replace(PASSED, seconds=7.0))
    with (tmp_path / "one" / RESULTS).open("a") as file:
        file.write('{"name": "cut o')
    assert [one.passed for one in store.results()] == [False, True]
    other = Store(tmp_path, "two")
    assert other.results() == []
    assert other.past() == {("a", False): 7.0}
    store.forget()
    assert store.results() == []


def test_an_edit_changes_the_key_of_the_sources(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        machine._git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words)

    git("init", "-q")
    (tmp_path / ".gitignore").write_text("build/\n")
    (tmp_path / "code.py").write_text("a = 1\n")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    first = machine.checkout(tmp_path)
    assert not first.changed and re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]{16}", first.key)
    (tmp_path / "build").mkdir()
    (tmp_path / "build/result").write_text("a result is no source")
    assert machine.checkout(tmp_path) == first
    (tmp_path / "new.py").write_text("b = 1\n")
    changed = machine.checkout(tmp_path)
    assert changed.changed and changed.sources != first.sources


def test_the_machine_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU\n")
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\n")
    assert machine.machine_class(tmp_path) == f"{os.cpu_count()} cores, 16 GiB of memory, A CPU"
    assert set(machine.REASONS) == set(Need)


def ran(tmp_path: Path, code: str, limit: float = 60.0, stop: runner.Stop | None = None) -> tuple[str, float]:
    command = [sys.executable, "-c", code]
    return runner.run(command, {}, tmp_path / "log", limit, lambda _: None, stop or runner.Stop())


def test_a_command_s_output_and_status_are_kept(tmp_path: Path) -> None:
    how, seconds = ran(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert how == "exit status 3" and seconds > 0
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]
    assert ran(tmp_path, "")[0] == ""


# A job that takes what it has started down on SIGINT only, and a process in its group that ignores SIGINT.
STUBBORN = """
import pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"])
pathlib.Path("{pid}").write_text(str(child.pid))
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("taken down")
"""


def test_a_job_that_hangs_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ENDINGS", ((signal.SIGINT, 3.0), (signal.SIGTERM, 20.0)))
    how, _ = ran(tmp_path, STUBBORN.format(pid=tmp_path / "pid"), limit=2.0)
    assert how == "it did not end within 0 minutes"
    assert (tmp_path / "log").read_text() == "taken down\n"
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(") ")[2][0] == "Z"


def test_without_root_a_job_is_run_by_sudo() -> None:
    assert runner.as_root(["a"], {"X": "1"}, is_root=True) == ["a"]
    assert runner.as_root(["a"], {"X": "1"}, is_root=False) == ["sudo", "-E", "env", "X=1", "a"]


LOG = """rollout: 9 of 10 mutants are killed (90.0 %)
not explained: operator/a.py:3 f
  - return a < b
  + return a <= b
10 of 10 mutants (0 of an earlier run), 1 survive, 1.0/s, 0.0 minutes left
analysis: 8 of 8 mutants are killed (100.0 %)
"""


def test_the_report_has_verdicts_last_lines_and_survivors() -> None:
    mutation = Job("mutation", "which change no test notices", 1, (), 1, ())
    failure = replace(FAILED, name="mutation", command="python -m mutation.main")
    done = with_result(plan([A, B, mutation], False, [PASSED], {Need.GPU: "there is none"}, {}, False), failure)
    night = Night(
        "c" * 40, True, "d" * 16, "2 cores", False, done, {"mutation": LOG}, {"mutation": "build/mutation.log"}
    )
    text = report(night)
    for words in (
        f"- Commit: `{'c' * 40}`, with changes that are not committed",
        "- Machine: 2 cores",
        "- Jobs: 1 passed, 1 failed, 1 left out",
        "| a | that A works | passed | 5.0 | 2026-01-01T00:00:00+00:00 |",
        "## mutation failed: exit status 1",
        "- Command: `python -m mutation.main`",
        "- Log: `build/mutation.log`",
        "- b-one: there is none",
    ):
        assert words in text.splitlines(), text
    assert "not run yet" in report(replace(night, steps=steps()))
    assert survivors(LOG) == [*LOG.splitlines()[:4], LOG.splitlines()[5]]


def test_the_last_lines_are_readable() -> None:
    assert last_lines("\x1b[31mred\x1b[0m\n\n10 %\r20 %\nend\n") == ["red", "20 %", "end"]
    assert len(last_lines("line\n" * 100)) == LAST_LINES


def test_progress_without_a_terminal_is_plain_lines() -> None:
    out = io.StringIO()
    with Shown(Console(file=out, width=200), steps()) as shown:
        shown.begins("build/a.log")
        for elapsed in range(1300):
            shown.runs(float(elapsed))
        shown.ended(PASSED)
    lines = [line[9:] for line in out.getvalue().splitlines()]
    assert lines[0] == "a (1 of 2): that A works; 10 min; build/a.log"
    assert [line.partition(";")[0] for line in lines[1:3]] == ["a: 10 min of 10 min", "a: 20 min of 10 min"]
    assert re.fullmatch(r"a: passed after 5 min; all done about \d\d:\d\d, in 20 min", lines[3])
    assert len(lines) == 4


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """A night of two jobs of which the second fails; each leaves a line in `ran`. Returns the exit code."""
    code = "import pathlib, sys; pathlib.Path('{ran}').open('a').write('{name}'); {then}"

    def job(name: str, then: str) -> Job:
        text = code.format(ran=tmp_path / "ran", name=name, then=then)
        return Job(name, name, 1, ("{python}", "-c", text), 1, ("{python}", "-c", text))

    again = f"import time; time.sleep(0 if pathlib.Path('{tmp_path / 'go'}').exists() else 600)"
    monkeypatch.setattr(main, "JOBS", (job("a", "print('fine')"), job("b", again), job("c", "sys.exit(1)")))
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(machine, "checkout", lambda: machine.Checkout("c" * 40, False, "d" * 16))
    monkeypatch.setattr(main, "NIGHTS", tmp_path / "build/nightly")
    monkeypatch.setattr(main, "REPORT", tmp_path / "build/nightly/report.md")

    def run(**options: bool) -> int:
        arguments = {
            "only": None,
            "quick": False,
            "listed": False,
            "again": False,
            "fresh": False,
            "seed": 1,
            **options,
        }
        try:
            main.main(**arguments)
        except typer.Exit as end:
            return end.exit_code
        return 0

    return run


def test_a_night_that_was_stopped_goes_on(night: Callable[..., int], tmp_path: Path) -> None:
    ran, text = tmp_path / "ran", tmp_path / "build/nightly/report.md"

    def interrupt() -> None:
        while not ran.exists() or ran.read_text() != "ab":
            time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert night() == main.INTERRUPTED
    thread.join()
    assert "| b | b | not run yet |" in text.read_text()
    (tmp_path / "go").touch()
    assert night() == main.FAILED
    assert ran.read_text() == "abbc", "what has a result does not run again"
    assert "| b | b | passed |" in text.read_text() and "## c failed: exit status 1" in text.read_text()
    assert night() == main.FAILED and night(again=True) == main.FAILED
    assert ran.read_text() == "abbcc"
    assert night(fresh=True) == main.FAILED
    assert ran.read_text() == "abbccabc"
    assert night(listed=True) == 0


def test_a_result_of_sources_that_changed_meanwhile_is_dropped(
    night: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter(range(9))
    before = machine.checkout()
    monkeypatch.setattr(machine, "checkout", lambda: dataclasses.replace(before, sources=f"{next(seen):016d}"))
    assert night() == main.CANNOT_RUN
    assert Store(main.NIGHTS, f"{before.commit[:12]}-{0:016d}").results() == []


def test_fuzzing_ends_with_its_time_and_leaves_out_what_fails() -> None:
    now, played = iter(range(100)), list[str]()

    def passes(chosen: fuzz.Round) -> bool:
        played.append(chosen[1][0])
        return chosen[1][0] != "one 2"

    def one(seed: int) -> fuzz.Round:
        return {}, [f"one {seed}"]

    def two(seed: int) -> fuzz.Round:
        return {}, [f"two {seed}"]

    assert fuzz.rounds([one, two], 1, until=4.0, passes=passes, clock=lambda: float(next(now))) == ["one"]
    assert played == ["one 1", "two 1", "one 2", "two 2", "two 3", "two 4"]
    assert fuzz.rounds([one], 2, until=0.0, passes=passes) == ["one"]
