"""Mutation testing of the decisions (`make mutation`): which small change of the program does no test notice?

Each mutant is one changed program (`mutants`). It meets the tests that reach the changed statement, the quick ones first,
20 s of processor time of them at most, until one fails. Survivors are printed with their place. A survivor that no test can
kill, because it decides the same, stands in explained.toml with the reason. Exit code 1 when a survivor is not explained
there, or when an explanation is about no survivor any more. Outcomes are stored in build/mutation: a run that was stopped
goes on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from mutation import hook
from mutation.campaign import Campaign
from mutation.mutants import Mutant
from mutation.progress import say, shown
from mutation.suites import ENVIRONMENT, ROOT, SUITES

EXPLAINED = Path(__file__).with_name("explained.toml")
OPTIONS = ("-q", "-s", "-p", "no:cacheprovider", *hook.WARNINGS)


def main() -> int:
    parser = argparse.ArgumentParser(description="Which small change of the operator's decisions does no test notice?")
    parser.add_argument("packages", nargs="*", default=list(SUITES), help=f"of {', '.join(SUITES)}")
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME",
        help="only this module, by the end of its dotted name (repeatable)",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at the same time")
    parser.add_argument("--seconds", type=float, default=20.0, help="processor time of the tests of one mutant")
    parser.add_argument("--tests", action="append", default=[], help="only this file of tests: what it kills alone")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.packages) - set(SUITES)):
        parser.error(f"unknown: {', '.join(unknown)}; the packages are {', '.join(SUITES)}")
    modules = {name: called(chosen.module, SUITES[name].modules()) for name in chosen.packages}
    if unknown := [one for one in chosen.module if not called([one], chain.from_iterable(modules.values()))]:
        parser.error(f"no module of {', '.join(modules)} is called {', '.join(unknown)}")
    packages = [name for name in chosen.packages if modules[name] or not chosen.module]
    if len(packages) > 1:
        return max(_alone(name, sys.argv[1:], chosen.packages) for name in packages)
    (name,) = packages
    suite = replace(SUITES[name], tests=tuple(chosen.tests)) if chosen.tests else SUITES[name]
    return run(Campaign(name, suite, chosen.jobs, chosen.seconds, modules[name]))


def called(names: Iterable[str], modules: Iterable[str]) -> list[str]:
    """Return the modules whose dotted names end with one of the names."""
    ends = tuple(f".{name}" for name in names)
    return [module for module in modules if f".{module}".endswith(ends)]


def _alone(name: str, arguments: list[str], names: list[str]) -> int:
    """Each package in a process of its own: pytest imports the tests once for a session."""
    options = [argument for argument in arguments if argument not in names]
    return subprocess.run([sys.executable, "-m", "mutation.main", name, *options], check=False).returncode


def run(campaign: Campaign) -> int:
    os.environ.update(ENVIRONMENT)
    hook.quick_hypothesis()
    ended = pytest.main(
        [*OPTIONS, f"--rootdir={ROOT}", *(str(ROOT / path) for path in campaign.suite.tests)], plugins=[campaign]
    )
    if campaign.error or not campaign.results:
        say(f"mutation: {campaign.error or f'no mutant was tried (pytest ended with {ended})'}")
        return 2
    return report(campaign, explanations(EXPLAINED))


def explanations(path: Path) -> dict[tuple[str, str, str, str], str]:
    """The reasons, by module, function, before and after."""
    listed = tomllib.loads(path.read_text()).get("survivor", [])
    return {(one["module"], one["function"], one["before"], one["after"]): one["reason"] for one in listed}


def report(campaign: Campaign, explained: dict[tuple[str, str, str, str], str]) -> int:
    paths = {module: path.relative_to(ROOT).as_posix() for module, path in campaign.suite.modules().items()}
    survivors = [mutant for mutant, outcome in campaign.results.items() if not outcome.killed]
    new = [mutant for mutant in survivors if mutant.key not in explained]
    tried: dict[str, list[Mutant]] = {}
    for mutant in campaign.results:
        tried.setdefault(mutant.module, []).append(mutant)
    say(f"\n{'module':28} mutants  killed  explained  not explained")
    for module, own in tried.items():
        killed = sum(campaign.results[mutant].killed for mutant in own)
        open_here = sum(mutant in new for mutant in own)
        row = f"{len(own):7} {killed:7} {len(own) - killed - open_here:10} {open_here:14}"
        say(f"{module.rpartition('.')[2]:28} {row}")
    total, alive = len(campaign.results), {mutant.key for mutant in survivors}
    killed = total - len(survivors)
    say(f"{campaign.name}: {killed} of {total} mutants are killed ({100 * killed / total:.1f} %)")
    for mutant in new:
        say(f"not explained: {shown(mutant, paths[mutant.module])}")
    stale = [key for key in explained if key[0] in tried and key not in alive]
    for module, function, before, after in stale:
        say(f"explained, but no survivor: {module} {function}\n  - {before}\n  + {after}")
    return 1 if new or stale else 0


if __name__ == "__main__":
    sys.exit(main())
