"""Protects the server from clients' grammars: a bad one is refused with its reason, a hostile one within a budget."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import signal
import struct
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pagefleet_engine.core.requests import Grammar
from pagefleet_engine.model.text import tokenizer
from pagefleet_engine.model.text.grammar import Compiler
from pagefleet_engine.model.text.grammar_check import Checker, Unchecked
from pagefleet_engine.runner.common.grammar import Grammars


@pytest.fixture(scope="module")
def checker(words: tokenizer.Tokenizer) -> Iterator[Checker]:
    checker = Checker(words.backend.to_str(), words.vocab_size, words.eos_token_ids)
    checker.warm_up()
    yield checker
    checker.close()


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"properties": {"a": {"not": {}}}}), 'keyword "not" is not supported'),
        (schema({"type": "string", "format": "colour"}), "Unknown format: colour"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "no text can satisfy it"),
        (schema({"$ref": "#/nowhere"}), "nowhere"),
        (schema({"type": "string", "pattern": "("}), "unclosed group"),
        (Grammar("regex", "ab("), "unclosed group"),
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("regex", r"(a)\1"), "backreferences"),
        (Grammar("regex", "\ud800"), "not valid Unicode"),
        (Grammar("grammar", 'start: "a" foo'), "unknown name"),
        (Grammar("grammar", "root ::= foo"), "foo"),
        (Grammar("magic", ""), "json_object, json_schema"),
    ],
)
def test_a_bad_grammar_is_refused_with_its_reason_by_both_processes(
    grammars: Grammars, checker: Checker, spec: Grammar, message: str
) -> None:
    for refuse in (grammars.compile, checker.check):
        with pytest.raises(ValueError, match=re.escape(message)) as refused:
            refuse(spec)
        assert len(str(refused.value)) <= 300
    checker.check(Grammar("json_object", ""))


REFS = {
    f"a{i}": {"required": ["x", "y"], "properties": {key: {"$ref": f"#/$defs/a{i + 1}"} for key in "xy"}}
    for i in range(40)
}


@pytest.mark.parametrize(
    "spec",
    [
        Grammar("regex", "(a+)+$"),
        Grammar("regex", "(a{1,1000}){1,1000}"),
        Grammar("regex", "((((a{0,1000}){0,1000}){0,1000}){0,1000})" * 20),
        Grammar("regex", "a{1000000000}"),
        Grammar("regex", "(a|b)*a(a|b){200}"),
        Grammar("regex", r"(\w|\d|\p{L}|[^a-z]){1000}" * 100),
        Grammar("regex", "(" * 2000 + "a" + ")" * 2000),
        Grammar("regex", "a?" * 1000 + "a" * 1000),
        schema({"enum": [f"value{i}" for i in range(5000)]}),
        schema({"type": "string", "allOf": [{"pattern": f"a{{{i}}}b*"} for i in range(100)]}),
        schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
        schema({"type": "string", "minLength": 10**9, "maxLength": 10**10}),
        schema({"properties": {f"p{i}": {"type": "string"} for i in range(1500)}}),
        schema({"anyOf": [{"type": "integer", "minimum": -(10**17) - i, "maximum": 10**17 + i} for i in range(500)]}),
        schema({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(3)]} for i in range(14)]}),
        schema({"$ref": "#/$defs/a0", "$defs": {**REFS, "a40": {"type": "integer"}}}),
        Grammar("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000),
        Grammar("grammar", "root ::= " + "(" * 5000),
        Grammar("grammar", "start: e\ne: e e | e e e | " + '"a" | ""'),
        Grammar("grammar", "start: T\nT: " + " & ".join(f"/.*a.{{{i}}}/" for i in range(60))),
    ],
    ids=lambda spec: spec.text[:24],
)
def test_a_hostile_grammar_is_bounded(words: tokenizer.Tokenizer, checker: Checker, spec: Grammar) -> None:
    """Within its budget it is refused, or good; the next request's grammar is served either way."""
    began = time.process_time()
    try:
        checker.check(spec)
    except ValueError as error:
        assert len(str(error)) <= 300
    else:
        Compiler(words.backend.to_str(), words.vocab_size, words.eos_token_ids).try_out(spec)
        assert time.process_time() - began < 2
    checker.check(schema({"type": "object"}))


def test_the_checking_process_is_ended_at_its_budget_and_replaced(checker: Checker) -> None:
    began = time.monotonic()
    hostile = schema({"type": "string", "allOf": [{"pattern": f"a{{{i}}}b*"} for i in range(200)]})
    with pytest.raises(ValueError, match=r"more than 0\.5 s"):
        checker.check(hostile)
    assert time.monotonic() - began < 5
    checker.check(schema({"type": "string", "title": str(began)}))


def test_a_grammar_whose_check_was_killed_is_checked_again(words: tokenizer.Tokenizer) -> None:
    """A process that others stop or kill says nothing about the grammar."""
    checker = Checker(words.backend.to_str(), words.vocab_size, words.eos_token_ids)
    checker.warm_up()
    process = checker._process
    assert process is not None and process.stdin is not None
    os.kill(process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(checker.check, Grammar("regex", "[a-z]+"))
        while not struct.unpack("i", fcntl.ioctl(process.stdin, termios.FIONREAD, b"    "))[0]:
            pass
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(Unchecked, match="could not be checked in time"):
            asked.result()
    checker.check(Grammar("regex", "[a-z]+"))
    checker.close()


def test_the_budget_is_processor_time(words: tokenizer.Tokenizer, checker: Checker) -> None:
    slow = schema({"properties": {f"v{i}": {"type": "string", "pattern": f"\\p{{L}}{{{i}}}\\w+"} for i in range(200)}})
    checker.check(slow)
    hasty = Checker(words.backend.to_str(), words.vocab_size, words.eos_token_ids, cpu_seconds=0.02)
    with pytest.raises(ValueError, match=r"more than 0\.02 s"):
        hasty.check(slow)
    hasty.check(Grammar("regex", "a"))
    hasty.close()


def test_a_server_with_many_connections_has_its_grammars_checked(words: tokenizer.Tokenizer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    checker = Checker(words.backend.to_str(), words.vocab_size, words.eos_token_ids)
    try:
        checker.check(Grammar("regex", "[a-z]+"))
        with pytest.raises(ValueError):
            checker.check(Grammar("regex", "("))
    finally:
        checker.close()
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
