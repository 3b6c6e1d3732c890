"""Grammars that bound what a model may write: JSON schemas, regexes, choices, Lark or GBNF. No torch.

llguidance compiles them (Earley's parser, 1970, over a lexer of regex derivatives) against the model's vocabulary.
A client's grammar may be hostile: `grammar_check` compiles it under a budget before it reaches an engine.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KINDS = ("json_object", "json_schema", "regex", "grammar", "choice")
PREFIXED = "prefixed"  # besides KINDS, not for clients: a Lark rule before another grammar, as `prefixed` writes it
# Between two JSON tokens: models indent, and a weak one would otherwise write spaces until its last token.
WHITESPACE = r"[ \n\r\t]{1,32}"
TRIAL_STEPS = 8
MAX_ERROR = 300
# The lexer's states take 1-2 kB each; the library's own bound of 250,000 would be half a gigabyte a sequence.
LIMITS: dict[str, Any] = {
    "max_items_in_row": 4_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}


class _Spec(NamedTuple):
    kind: str
    text: str


class GrammarSpec(Protocol):
    """The fields of `core.requests.Grammar`: the text's meaning depends on `kind`, one of KINDS."""

    @property
    def kind(self) -> str: ...

    @property
    def text(self) -> str: ...


class Compiler:
    """Compiled grammars of one model; the `cached` most recently used are stored. Thread-safe.

    `vocabulary` is the tokenizer as JSON (`tokenizers.Tokenizer.to_str()`), `vocab_size` the length of the logits.
    """

    def __init__(self, vocabulary: str, vocab_size: int, eos_token_ids: Sequence[int], cached: int = 128) -> None:
        self._vocabulary, self.vocab_size, self.eos_token_ids = vocabulary, vocab_size, tuple(eos_token_ids)
        self._tokens: LLTokenizer | None = None
        self._cache: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._cached, self._lock = cached, Lock()

    def compile(self, spec: GrammarSpec) -> LLMatcher:
        """Return a matcher at the grammar's beginning, the caller's own. Raises ValueError that states the grammar's fault."""
        key = (spec.kind, spec.text)
        with self._lock:
            cached = self._cache.get(key)
            if cached is not None:
                self._cache.move_to_end(key)
                return cached.deep_copy()
        made = self._make(spec)
        with self._lock:
            self._cache[key] = made
            while len(self._cache) > self._cached:
                self._cache.popitem(last=False)
            return made.deep_copy()

    def try_out(self, spec: GrammarSpec) -> None:
        """Compile the grammar and take a few steps, so that early errors are raised here. Raises ValueError."""
        matcher = self.compile(spec)
        for _ in range(TRIAL_STEPS):
            if matcher.is_stopped():
                break
            allowed = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_error() or not allowed:
                break
            matcher.consume_token((allowed & -allowed).bit_length() - 1)
        if matcher.is_error():
            raise ValueError(_readable(matcher.get_error()))

    def _make(self, spec: GrammarSpec) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits, LLTokenizer

        with self._lock:
            if self._tokens is None:
                eos = list(self.eos_token_ids) or None
                self._tokens = LLTokenizer(self._vocabulary, n_vocab=self.vocab_size, eos_token=eos)
                self._vocabulary = ""
        text = definition(spec)
        matcher = LLMatcher(self._tokens, text, limits=LLParserLimits(**LIMITS), log_level=0)
        probe = matcher.deep_copy()  # an empty language shows with the first mask only
        if not probe.is_error():
            probe.compute_bitmask()
        if probe.is_error():
            raise ValueError(_readable(probe.get_error()))
        return matcher


def definition(spec: GrammarSpec) -> str:
    """The grammar in llguidance's own form. Raises ValueError."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        match spec.kind:
            case "json_object":
                return _schema({"type": "object"})
            case "json_schema":
                return _schema(json.loads(spec.text))
            case "regex":
                return _regex(spec.text)
            case "choice":
                return _regex("|".join(map(literal, json.loads(spec.text))))
            case "grammar":
                return LLMatcher.grammar_from_lark(any_to_lark(spec.text))
            case kind if kind == PREFIXED:
                before, kind, text = json.loads(spec.text)
                return _after(before, definition(_Spec(kind, text)))
            case kind:
                raise ValueError(f"unknown kind of grammar {kind!r}; allowed: {', '.join(KINDS)}")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text is not valid Unicode: {error.reason}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError:
        raise
    except Exception as error:  # any_to_lark raises bare Exceptions
        raise ValueError(_readable(str(error))) from error


def prefixed(rules: str, spec: GrammarSpec) -> str:
    """Return the text of a grammar of kind PREFIXED: Lark rules whose `start` names the other grammar as `@answer`."""
    return json.dumps([rules, spec.kind, spec.text])


def _after(rules: str, inner: str) -> str:
    """`inner` is in one of llguidance's own forms: Lark, or JSON with one grammar."""
    one = json.loads(inner)["grammars"][0] if inner.lstrip().startswith("{") else {"lark_grammar": inner}
    return json.dumps({"grammars": [{"lark_grammar": rules}, {**one, "name": "answer"}]})


def literal(text: str) -> str:
    """A regex that matches exactly this text."""
    return re.sub(r"[^a-zA-Z0-9]", lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def _regex(text: str) -> str:
    """Restrict \\d and \\w to ASCII, as in JSON schemas: few writers of \\d mean the digits of every script."""
    from llguidance import LLMatcher, regex_to_lark

    return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(text, 'dw')}/")


def _schema(schema: Any) -> str:
    from llguidance import LLMatcher

    if isinstance(schema, dict):  # llguidance reads this key, and it could lift the limits below
        schema = {key: value for key, value in schema.items() if key != "x-guidance"}
    return LLMatcher.grammar_from_json_schema(
        json.dumps(schema, ensure_ascii=False), overrides={"whitespace_pattern": WHITESPACE, "lenient": False}
    )


def _readable(message: str) -> str:
    """The library's error, short and in a client's words."""
    unknown = re.match(r"Unimplemented keys: \[(.*)\]", message)
    if unknown:
        return f"the schema's keyword {unknown[1]} is not supported"
    if "NoExtensionBias" in message:
        return "no text can satisfy it"
    if re.search(r"fuel|too (many|big|large|deep)|limit|[Cc]urrent row has|ParserTooComplex|LexerTooComplex", message):
        message = "it is too complex: " + message
    message = re.sub(r"\n?<(state|non-verbose/)>.*", "", message, flags=re.DOTALL).strip()
    return message if len(message) <= MAX_ERROR else message[: MAX_ERROR - 3] + "..."
