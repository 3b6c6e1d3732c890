"""Protects `make mutation`: each kind of change is made and really runs, text that only a person reads is left alone, a new
survivor and an outdated explanation fail the run, and every explanation is about a change that there is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from mutation import main, patching
from mutation.campaign import Campaign
from mutation.mutants import MODULE_LEVEL, Mutant, mutants
from mutation.stored import Outcome
from mutation.suites import SUITES

SOURCE = '''"""A module."""
LIMIT = 3


def share(ready: int, needed: int, *, most: int = 100) -> int:
    """Return a percentage."""
    if not ready:
        raise ValueError(f"no pod of {needed} is ready")
    percent = min(most, 100 * ready // needed)
    return percent if percent >= LIMIT and ready is not None else round(0.5, ndigits=0)


class Record:
    reason: str = "Alert"

    @property
    def is_alert(self) -> bool:
        def same(text: str) -> bool:
            return text == "Alert"

        return same(self.reason)
'''


def changes(function: str) -> set[str]:
    return {mutant.after for mutant in mutants("m", SOURCE) if mutant.function == function}


def test_each_kind_of_change_is_made() -> None:
    end = "return percent if percent >= LIMIT and ready is not None else round(0.5, ndigits=0)"
    assert changes("share") == {
        "if True:",
        "if False:",
        "pass",
        "percent = max(most, 100 * ready // needed)",
        "percent = min(most, 100 * ready * needed)",
        "percent = min(most, 100 / ready // needed)",
        "percent = min(most, 101 * ready // needed)",
        end.replace("percent >= LIMIT and ready is not None", "True"),
        end.replace("percent >= LIMIT and ready is not None", "False"),
        end.replace(" and ", " or "),
        end.replace(" and ready is not None", ""),
        end.replace("percent >= LIMIT and ", ""),
        end.replace(">=", ">"),
        end.replace("is not", "is"),
        end.replace(", ndigits=0", ""),
        end.replace("0.5", "0.75"),
        end.replace("ndigits=0", "ndigits=1"),
    }
    assert changes("Record.is_alert") == {"return text != 'Alert'", "return text == 'Alert_'"}
    assert changes(MODULE_LEVEL) == {
        "LIMIT = 4",
        "def share(ready: int, needed: int, *, most: int=101) -> int:",
        "reason: str = 'Alert_'",
    }


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "sample_of_mutation.py"
    path.write_text(SOURCE)
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    exec(compile(SOURCE, str(path), "exec", dont_inherit=True), vars(module))
    return module


def test_every_change_inside_a_function_runs_under_each_name_of_the_function(module: ModuleType) -> None:
    """The names that other modules have imported must not keep the unchanged code."""
    imported, record = module.share, module.Record()
    for mutant in mutants(module.__name__, SOURCE):
        if mutant.is_in_function:
            patching.replace_code(mutant, SOURCE)
    (boundary,) = (one for one in mutants(module.__name__, SOURCE) if "percent > LIMIT" in one.after)
    assert imported(3, 100) is not None
    patching.replace_code(boundary, SOURCE)
    assert (imported(3, 100), imported(4, 100)) == (0.0, 4)
    (equal,) = (one for one in mutants(module.__name__, SOURCE) if "!=" in one.after)
    assert record.is_alert is False
    patching.replace_code(equal, SOURCE)
    assert record.is_alert is False
    module.Record.reason = "another"
    assert record.is_alert is True


def test_the_statements_that_a_test_reaches_are_recorded(module: ModuleType) -> None:
    reached: set[tuple[str, int]] = set()
    patching.record_statements(module.__name__, SOURCE, reached)
    with pytest.raises(ValueError, match="no pod of 2"):
        module.share(0, 2)
    lines = SOURCE.splitlines()
    assert {lines[line - 1].strip().split()[0] for _, line in reached if line > 6} == {"if", "raise"}
    assert module.share(1, 2) == 50
    assert len(reached) >= 4


def results(survives: bool, package: str = "rollout") -> Campaign:
    campaign = Campaign(package, SUITES[package], jobs=1, seconds=1.0)
    path = next(iter(SUITES[package].modules()))
    mutant = Mutant(path, "f", 1, 1, 0, 0, "return a < b", "return a <= b")
    campaign.results[mutant] = Outcome(not survives, "" if survives else "test", 0.1)
    return campaign


def test_a_survivor_needs_a_reason_and_a_reason_needs_a_survivor(capsys: pytest.CaptureFixture[str]) -> None:
    survivor = results(survives=True)
    (mutant,) = survivor.results
    reasons = {mutant.key: "they are never equal"}
    assert main.report(survivor, reasons) == 0
    assert main.report(survivor, {}) == 1
    assert "not explained: " in capsys.readouterr().out
    assert main.report(results(survives=False), reasons) == 1
    assert "explained, but no survivor: " in capsys.readouterr().out
    assert main.report(results(survives=False), {}) == 0


def test_each_explanation_is_about_a_change_that_there_is() -> None:
    explained = main.explanations(main.EXPLAINED)
    made = {
        mutant.key
        for suite in SUITES.values()
        for module, path in suite.modules().items()
        for mutant in mutants(module, path.read_text())
    }
    assert sorted(set(explained) - made) == []
    assert all(len(reason) > 20 for reason in explained.values())


def test_a_module_is_named_by_the_end_of_its_dotted_name() -> None:
    modules = ["package.rollout.step", "package.rollout.one_step", "package.analysis.step"]
    assert main.called(["step"], modules) == ["package.rollout.step", "package.analysis.step"]
    assert main.called(["analysis.step"], modules) == ["package.analysis.step"]
    assert main.called([], modules) == []


def test_a_module_that_there_is_not_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mutation", "rollout", "--module", "nowhere"])
    with pytest.raises(SystemExit):
        main.main()
    assert "no module of rollout is called nowhere" in capsys.readouterr().err
