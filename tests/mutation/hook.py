"""A pytest plugin (`-p mutation.hook`) that changes a module while it is imported: for changes outside of functions.

PAGEFLEET_MUTANT is "MODULE PLACE CHOICE", as `Mutant` has them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from hypothesis import Phase, settings
from mutation.mutants import MODULE_LEVEL, Mutant, mutated

VARIABLE = "PAGEFLEET_MUTANT"
# Hypothesis is set up before pytest begins: pytest would warn that it cannot rewrite hypothesis' assertions.
WARNINGS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


def value_of(mutant: Mutant) -> str:
    return f"{mutant.module} {mutant.place} {mutant.choice}"


class Loader(SourceFileLoader):
    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        tree = mutated(self.get_data(self.path).decode(), self.mutant)
        return compile(tree, self.path, "exec", dont_inherit=True)


class Finder:
    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.mutant.module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            return None
        loader = Loader(name, spec.origin)
        loader.mutant = self.mutant
        spec.loader = loader
        return spec


def quick_hypothesis() -> None:
    """The same examples in every run, and none spent on making a failing one smaller."""
    quick = settings(phases=(Phase.explicit, Phase.generate), derandomize=True, database=None, deadline=None)
    settings.register_profile("mutation", quick)
    settings.load_profile("mutation")


def install(value: str) -> None:
    module, place, choice = value.split()
    if module in sys.modules:
        raise RuntimeError(f"{module} was imported before it could be changed")
    sys.meta_path.insert(0, Finder(Mutant(module, MODULE_LEVEL, 0, 0, int(place), int(choice), "", "")))


if os.environ.get(VARIABLE):
    quick_hypothesis()
    install(os.environ[VARIABLE])
