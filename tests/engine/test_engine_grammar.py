"""Protects constrained sampling: whatever the logits are, the text follows the grammar."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pagefleet_engine.api.constrained.formats import Asked
from pagefleet_engine.api.constrained.tools import read
from pagefleet_engine.api.parsing import harmony
from pagefleet_engine.api.parsing.deltas import message
from pagefleet_engine.api.parsing.reasoning import Reasoning, grammar_prefix
from pagefleet_engine.api.parsing.registry import STYLES, Dialect, Style
from pagefleet_engine.core.requests import Grammar
from pagefleet_engine.model.text import tokenizer
from pagefleet_engine.model.text.grammar import PREFIXED, prefixed
from pagefleet_engine.runner.common.grammar import Grammars, Matcher

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "mail": {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}[.](org|com)$"},
        "day": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["a", "é", 1, None]}, "minItems": 1, "maxItems": 3},
        "next": {"$ref": "#/$defs/point"},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "anyOf": [{"type": "null"}, {"type": "array", "prefixItems": [{"type": "number"}], "maxItems": 1}],
        }
    },
}
REGEX = r"(GET|POST) /[a-z]{1,5}(\?[a-z]=\d{1,3})? HTTP/1\.[01]"
CHOICES = ["yes", "no", 'say "no"', "a/b\\c\n", "naïve 🙂", "yes please"]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PERSON, "strict": True}},
    {"type": "function", "function": {"name": "stop"}},
]


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


NOISE = np.random.default_rng(7).standard_normal(1 << 20, dtype=np.float32)


def sample(grammars: Grammars, words: tokenizer.Tokenizer, matcher: Matcher, seed: int, most: int = 400) -> str:
    """Text drawn from random logits within the grammar until it ends."""
    random, tokens = Random(seed), list[int]()
    while not matcher.finished:
        row = NOISE[random.randrange(len(NOISE) - grammars.vocab_size) :][: grammars.vocab_size].copy()
        matcher.fill(torch.from_numpy(row))
        token = int(row.argmax())
        assert np.isfinite(row[token])
        matcher.accept(token)
        tokens.append(token)
        assert len(tokens) < most
    assert matcher.error is None
    return words.decode([token for token in tokens if token not in grammars.eos_token_ids])


def test_random_logits_always_write_json_of_the_schema(grammars: Grammars, words: tokenizer.Tokenizer) -> None:
    check = jsonschema.Draft202012Validator(PERSON, format_checker=jsonschema.FormatChecker(["date"]))
    fields = set()
    for seed in range(200):
        value = json.loads(sample(grammars, words, grammars.compile(schema(PERSON)), seed))
        check.validate(value)
        fields |= set(value)
    assert fields == set(PERSON["properties"])


def test_random_logits_always_write_what_the_regex_matches(grammars: Grammars, words: tokenizer.Tokenizer) -> None:
    texts = {sample(grammars, words, grammars.compile(Grammar("regex", REGEX)), seed) for seed in range(200)}
    assert [text for text in texts if not re.fullmatch(REGEX, text)] == []
    assert len(texts) > 100


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        (Grammar("choice", json.dumps(CHOICES)), set(CHOICES)),
        (Grammar("grammar", 'start: "a" ("b" | "c")'), {"ab", "ac"}),
        (Grammar("grammar", 'root ::= "a" [bc]'), {"ab", "ac"}),
    ],
)
def test_random_logits_write_each_choice_and_nothing_else(
    grammars: Grammars, words: tokenizer.Tokenizer, spec: Grammar, allowed: set[str]
) -> None:
    assert {sample(grammars, words, grammars.compile(spec), seed) for seed in range(100)} == allowed


@pytest.mark.parametrize("style", [Style.HERMES, Style.LLAMA3_JSON])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_forced_call_is_made_and_its_arguments_follow_the_schema(
    grammars: Grammars, words: tokenizer.Tokenizer, style: Style, parallel: bool
) -> None:
    tools = read({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel})
    assert tools is not None
    asked = tools.grammar(style, None)
    assert asked is not None
    called = set()
    for seed in range(20):
        text = sample(grammars, words, grammars.compile(asked.grammar), seed, 4000)
        for eager in (False, True):
            stream = STYLES[style].stream(tools.functions(eager))
            made = message([*stream.feed(text), *stream.finish()])
            assert made["content"] is None
            assert parallel or len(made["tool_calls"]) == 1
            for call in made["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                called.add(call["function"]["name"])
                jsonschema.validate(
                    arguments, PERSON if call["function"]["name"] == "weather" else {"maxProperties": 0}
                )
    assert called == {"weather", "stop"}


CALL = '<tool_call>\n{"name": "weather", "arguments": {"name": "x", "age": 3, "tags": [1]}}\n</tool_call>'


@pytest.mark.parametrize(
    ("style", "answer", "text", "good"),
    [
        (Style.HERMES, None, "free text, 1 <tool", True),
        (Style.HERMES, None, f"let me see {CALL}\n{CALL} done", True),
        (Style.HERMES, None, f"let me see {CALL.replace('age', 'old')}", False),
        (Style.HERMES, None, "let me see <tool_call>\nx", False),
        (Style.LLAMA3_JSON, None, "free text {", True),
        (Style.LLAMA3_JSON, None, '{"name": "stop", "parameters": {}}', True),
        (Style.LLAMA3_JSON, None, '{"name": "halt", "parameters": {}}', False),
        (Style.LLAMA3_JSON, None, '\n {"name": "stop", "parameters": {}}', True),
        (Style.LLAMA3_JSON, None, '\n {"name": "weather", "parameters": {"age": "x"}}', False),
        (Style.LLAMA3_JSON, None, '<|python_tag|>{"name": "weather", "parameters": {"age": "x"}}', False),
        (Style.LLAMA3_JSON, None, "\n <b> {", True),
        (Style.HERMES, {"type": "array"}, "[1, 2]", True),
        (Style.HERMES, {"type": "array"}, CALL, True),
        (Style.HERMES, {"type": "array"}, "free text", False),
    ],
)
def test_with_auto_the_model_may_talk_or_call_a_strict_function_rightly(
    grammars: Grammars, words: tokenizer.Tokenizer, style: Style, answer: Any, text: str, good: bool
) -> None:
    tools = read({"tools": TOOLS})
    assert tools is not None
    asked = tools.grammar(style, Asked(schema(answer), "response_format") if answer else None)
    assert asked is not None
    matcher = grammars.compile(asked.grammar)
    for token in words.encode(text, add_special_tokens=False):
        row = torch.zeros(grammars.vocab_size)
        matcher.fill(row)
        matcher.accept(token)
        if not row[token].isfinite():
            break
    assert (matcher.error is None) is good
    assert not matcher.refused()[list(grammars.eos_token_ids)].any(), "a text that may end here"


BAD_CALL = '{"name": "weather", "parameters": {"age": "x"}}'


@pytest.mark.parametrize("begun", [None, True])
@pytest.mark.parametrize(
    "text",
    [
        BAD_CALL,
        " \r\n<think>so</think>" + BAD_CALL,
        "<think>so</think>\r" + BAD_CALL,
        "<think>so</think>\xa0" + BAD_CALL,
    ],
)
def test_reasoning_hides_no_call_of_a_strict_function(
    grammars: Grammars, words: tokenizer.Tokenizer, begun: bool | None, text: str
) -> None:
    tools, rules = read({"tools": TOOLS}), grammar_prefix(Reasoning.QWEN3, begun, forced=False)
    assert tools is not None and rules is not None
    asked = tools.grammar(Style.LLAMA3_JSON, None, thinks=True)
    assert asked is not None
    matcher = grammars.compile(Grammar(PREFIXED, prefixed(rules, asked.grammar)))
    written = list[int]()
    for token in words.encode(text, add_special_tokens=False):
        if matcher.refused()[token]:
            break
        matcher.accept(token)
        written.append(token)
    parser = Dialect(Style.LLAMA3_JSON, Reasoning.QWEN3).parser(tools.functions(False), begun, forced=False)
    assert parser is not None
    made = message([*parser.feed(words.decode(written)), *parser.finish()])
    assert not made.get("tool_calls")


def test_reasoning_may_name_the_tag_of_a_call(grammars: Grammars, words: tokenizer.Tokenizer) -> None:
    tools, rules = read({"tools": TOOLS}), grammar_prefix(Reasoning.QWEN3, None, forced=False)
    assert tools is not None and rules is not None
    asked = tools.grammar(Style.HERMES, None, thinks=True)
    assert asked is not None
    matcher = grammars.compile(Grammar(PREFIXED, prefixed(rules, asked.grammar)))
    for token in words.encode(f"<think>shall I write <tool_call>?</think>\n\n{CALL}", add_special_tokens=False):
        assert not matcher.refused()[token]
        matcher.accept(token)
    assert not matcher.refused()[list(grammars.eos_token_ids)].any()


THOUGHT = "so { 1 </think>\n\n"


@pytest.mark.parametrize(
    ("begun", "answer", "text", "good"),
    [
        (True, Grammar("json_object", ""), THOUGHT + '{"a": 1}', True),
        (True, Grammar("regex", "[0-9]+"), THOUGHT + "12", True),
        (True, Grammar("choice", '["yes", "no"]'), THOUGHT + "yes", True),
        (True, Grammar("grammar", 'start: "a" "b"'), THOUGHT + "ab", True),
        (True, Grammar("json_object", ""), THOUGHT + "so", False),
        (None, Grammar("json_object", ""), "<think>" + THOUGHT + '{"a": 1}', True),
        (None, Grammar("json_object", ""), '{"a": 1}', True),
        (None, Grammar("json_object", ""), "so", False),
    ],
)
def test_a_format_binds_what_follows_the_reasoning(
    grammars: Grammars, words: tokenizer.Tokenizer, begun: bool | None, answer: Grammar, text: str, good: bool
) -> None:
    rules = grammar_prefix(Reasoning.QWEN3, begun, forced=False)
    assert rules is not None
    matcher = grammars.compile(Grammar(PREFIXED, prefixed(rules, answer)))
    for token in words.encode(text, add_special_tokens=False):
        matcher.accept(token)
    assert (matcher.error is None) is good
    assert not matcher.refused()[list(grammars.eos_token_ids)].any()


def test_harmony_s_channels_are_special_tokens() -> None:
    special = ["<eos>", *harmony.MARKERS]
    fast = Tokenizer(models.BPE(vocab={chr(33 + at): at for at in range(94)} | {"\u0120": 94}, merges=[]))
    fast.add_special_tokens(special)
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    made = Grammars(fast, fast.get_vocab_size(), [fast.token_to_id("<eos>")])
    tools = read({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "stop"}}})
    assert tools is not None
    asked = tools.grammar(Style.OPENAI, None)
    assert asked is not None
    head = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>"
    for forced, inner, rest in (
        (True, asked.grammar, "commentary to=functions.stop <|constrain|>json<|message|>{}"),
        (False, Grammar("json_object", ""), "final<|message|>{}"),
    ):
        rules = grammar_prefix(Reasoning.OPENAI_GPTOSS, None, forced=forced)
        assert rules is not None
        matcher = made.compile(Grammar(PREFIXED, prefixed(rules, inner)))
        for token in fast.encode(head + rest).ids:
            matcher.accept(token)
        assert matcher.error is None
        assert not matcher.refused()[fast.token_to_id("<eos>")]


def test_a_stuck_or_finished_matcher_leaves_eos(grammars: Grammars) -> None:
    matcher = grammars.compile(Grammar("regex", "a"))
    matcher.accept(5)  # a token that the grammar did not allow
    assert matcher.error
    row = torch.randn(grammars.vocab_size)
    matcher.fill(row)
    assert row.isfinite().nonzero().flatten().tolist() == sorted(grammars.eos_token_ids)
    assert not row.softmax(0).isnan().any()


def test_a_row_wider_than_the_vocabulary_is_masked_to_its_end(words: tokenizer.Tokenizer) -> None:
    padded = Grammars(words.backend, words.vocab_size + 64, words.eos_token_ids)
    row = torch.randn(padded.vocab_size)
    padded.compile(Grammar("choice", '["a"]')).fill(row)
    assert words.decode([int(row.argmax())]) == "a"
    assert not row[words.vocab_size :].isfinite().any()


def test_a_matcher_is_its_sequence_s_own(grammars: Grammars, words: tokenizer.Tokenizer) -> None:
    """Compiled grammars are shared between requests. Each request has a position of its own in its grammar."""
    spec, eos = Grammar("choice", '["abc", "abd"]'), grammars.eos_token_ids[0]
    first = grammars.compile(spec)
    before = first.refused()
    for token in (*words.encode("abc", add_special_tokens=False), eos):
        first.accept(token)
    assert first.finished
    second = grammars.compile(spec)
    assert not second.finished
    assert (second.refused() == before).all()
