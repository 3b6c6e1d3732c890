"""Evaluates the rules of a spec: the same CEL that the CRD ships to the API server.

A rule that cannot be evaluated counts as broken, as it does in the API server. Measured with 89 rules: 0.3 ms for a small
spec and 1.4 ms for one with every list full; the programs are compiled when they are first used, 18 ms for all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cel_expr_python import cel

from pagefleet_operator.domain.spec.rules.rule import Rule
from pagefleet_operator.domain.spec.schema.structure import SpecError, at

MAX_CAUSE_CHARACTERS = 200


def violations(rules: Iterable[Rule], spec: Mapping[str, Any]) -> Iterator[SpecError]:
    """One error for each rule that `spec` breaks. Total. A rule applies where the object at its `at` is present."""
    rules = tuple(rules)
    selves: dict[tuple[str, ...], Any] = {}
    for rule in rules:
        part = at(spec, rule.at)
        if part is None:
            continue
        try:
            if rule.at not in selves:
                selves[rule.at] = _environment().Activation({"self": _read(rules, rule.at, part)})
            result = _program(rule.cel).eval(selves[rule.at]).value()
        except Exception as error:
            result = str(error)
        if result is not True:
            yield SpecError(rule.field, rule.message + _cause(result))


def _cause(result: object) -> str:
    """Why a rule has neither held nor failed; the library returns the text of an error as the value."""
    if result is False:
        return ""
    return f" (the rule could not be evaluated: {' '.join(str(result).split())[:MAX_CAUSE_CHARACTERS]})"


def _read(rules: Iterable[Rule], where: tuple[str, ...], part: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object that some rule reads. A number beyond 64 bits in another field would spoil the whole object."""
    names = {name for rule in rules if rule.at == where for name in _fields(rule.cel)}
    return {name: value for name, value in part.items() if name in names}


@functools.cache
def _fields(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\bself\.(\w+)", text))


@functools.cache
def _environment() -> Any:
    return cel.NewEnv(variables={"self": cel.Type.DYN})


@functools.cache
def _program(text: str) -> Any:
    """Raises RuntimeError for a text that is not CEL."""
    return _environment().compile(text)
