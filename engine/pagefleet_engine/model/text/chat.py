"""Chat templates: Jinja as Hugging Face's models expect it, in a sandbox with bounds. No torch.

The helpers are those of transformers.utils.chat_template_utils. Jinja's sandbox keeps a template from Python's
internals; on top of it this one bounds the template's own length, the length of every text it makes and the time it
takes, as far as Jinja can be interrupted: at each output, call, attribute, item and operator, so not within one filter.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import do_format, do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEMPLATE_CHARACTERS, MAX_TEXT_CHARACTERS, MAX_SECONDS = 1 << 18, 1 << 24, 10.0
MARK = "\ue000continue\ue000 "  # ends with a space, which shows whether the template trims
WIDEST = 1 << 16  # of a padded or formatted text
REFUSED_GLOBALS, REFUSED_FILTERS = ("cycler", "joiner", "lipsum"), ("center", "pprint", "urlize", "wordwrap", "xmlattr")
# Methods of str that pad to a width.
PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map"})
# Errors of a template's own mistakes; the last three come from compiling one that nests too deeply.
UNRENDERED = (
    TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError, SyntaxError, MemoryError,
)  # fmt: skip
_deadline: ContextVar[float] = ContextVar("deadline")


class ChatTemplates:
    """A model's templates by name: "default", and perhaps "tool_use", which serves requests with tools."""

    def __init__(self, templates: Mapping[str, str], special: Mapping[str, str]) -> None:
        """`special`: bos_token and its like, as texts. A damaged template raises when it is rendered."""
        self._templates, self._special = dict(templates), dict(special)

    @property
    def default(self) -> str | None:
        return self._templates.get("default")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt's text. `template` goes before the model's own; `continue_final_message` cuts behind the last
        message's words, so that the model goes on with them. Raises ValueError when there is no template, it is
        damaged, it refuses these messages, or takes too long.
        """
        if template is None:
            name = "tool_use" if tools and "tool_use" in self._templates else "default"
            template = self._templates.get(name)
        if template is None:
            raise ValueError("this model has no chat template: use /v1/completions")
        made = [dict(message) for message in messages]
        if continue_final_message:
            if not made or not isinstance(made[-1].get("content"), str):
                raise ValueError("there is no text in the last message that could be continued")
            made[-1]["content"] += MARK
        variables = {
            **self._special,
            **(template_kwargs or {}),
            "messages": made,
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": (template_kwargs or {}).get("documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        reset = _deadline.set(time.monotonic() + MAX_SECONDS)
        try:
            text = _render(compiled(template), variables)
        except TemplateError as error:
            raise ValueError(f"the chat template refuses these messages: {error.message}") from error
        except UNRENDERED as error:
            raise ValueError(f"the chat template cannot render these messages: {error}") from error
        finally:
            _deadline.reset(reset)
        return _cut(text) if continue_final_message else text


def _cut(text: str) -> str:
    """Return the text before the mark, without the spaces before it where the template trims the message."""
    at = text.rfind(MARK.strip())
    if at < 0:
        raise ValueError("the chat template leaves the last message out, so it cannot be continued")
    return text[:at] if text.startswith(MARK, at) else text[:at].rstrip()


def _render(template: Template, variables: Mapping[str, Any]) -> str:
    pieces, length = [], 0
    for piece in template.generate(**variables):
        _check_time()
        length += len(piece)
        _check_length(length)
        pieces.append(piece)
    return "".join(pieces)


@lru_cache(maxsize=64)
def compiled(template: str) -> Template:
    """Raises TemplateError, and SecurityError for a template that is too long."""
    if len(template) > MAX_TEMPLATE_CHARACTERS:
        raise SecurityError(f"a template may have {MAX_TEMPLATE_CHARACTERS} characters, this one has {len(template)}")
    return _ENVIRONMENT.from_string(template)


def _check_time() -> None:
    if time.monotonic() > _deadline.get(float("inf")):
        raise SecurityError(f"it takes longer than {MAX_SECONDS:.0f} s")


def _check_length(length: int) -> None:
    if length > MAX_TEXT_CHARACTERS:
        raise SecurityError(f"it makes more than {MAX_TEXT_CHARACTERS} characters")


class _Generation(Extension):
    """{% generation %} marks the assistant's words for training; the words themselves stay."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Generator(CodeGenerator):
    """`a ~ b` becomes a call of the environment, which can bound it."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def joined(self, parts: tuple[Any, ...]) -> str:
        texts = [str(part) for part in parts]
        _check_length(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_time()
        match operator:
            case "+" if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
                _check_length(len(left) + len(right))
            case "*":
                for sized, times in ((left, right), (right, left)):
                    if isinstance(sized, str | list | tuple) and isinstance(times, int):
                        _check_length(len(sized) * times)
            case "**" if abs(left) > MAX_TEXT_CHARACTERS or abs(right) > 64:
                raise SecurityError("numbers as large as this are not computed")
            case "%" if isinstance(left, str):
                _check_widths(left, right)
            case _:
                pass
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        # Jinja wraps str.format.
        owner = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        if isinstance(owner, str):
            match getattr(called, "__name__", ""):
                case name if name in PADDING:
                    _check_widths(owner, args, kwargs)
                case "join" if args:
                    return _join(args[0], owner)
                case "replace" if len(args) >= 2:
                    return _replace(owner, *args[:3])
                case _:
                    pass
        return super().call(context, called, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_time()
        return super().getitem(obj, argument)


class _Namespace(Namespace):
    """Jinja's `namespace`, without attributes that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _check_widths(form: str, *arguments: Any) -> None:
    """Refuse numbers that pad a text beyond WIDEST, in the format or among its arguments."""
    if re.search(r"\d{5}", form):
        raise SecurityError("a width of this format is too large")
    pending = list(arguments)
    while pending:
        match pending.pop():
            case int() as number if abs(number) > WIDEST:
                raise SecurityError(f"a format is not filled with numbers above {WIDEST}")
            case list() | tuple() as several:
                pending += several
            case dict() as several:
                pending += several.values()
            case _:
                pass


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own: characters stay as they are, and nothing is escaped for HTML."""
    _check_widths("", indent)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    _check_length(len(text))
    return text


def _join(value: Iterable[Any], between: str = "", attribute: str | int | None = None) -> str:
    length, texts = 0, []
    for one in value if attribute is None else map(make_attrgetter(_ENVIRONMENT, attribute), value):
        texts.append(str(one))
        length += len(texts[-1]) + len(str(between))
        _check_length(length)
    return str(between).join(texts)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    whole, before, after = str(text), str(old), str(new)
    _check_length(len(whole) + whole.count(before) * len(after))
    return whole.replace(before, after, -1 if count is None else count)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    wide = len(width) if isinstance(width, str) else int(width)
    _check_length(len(text) + wide * (len(text.splitlines()) + 1))
    return do_indent(text, width, first, blank)


def _format(form: str, *arguments: Any, **named: Any) -> str:
    _check_widths(str(form), arguments, named)
    return do_format(form, *arguments, **named)


def _dict(*arguments: Any, **named: Any) -> dict[Any, Any]:
    return dict(*arguments, **named)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form[:256])


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    for name in REFUSED_FILTERS:
        environment.filters.pop(name)
    for name in REFUSED_GLOBALS:
        environment.globals.pop(name)
    filters: dict[str, Any] = {
        "tojson": _tojson, "join": _join, "replace": _replace, "indent": _indent, "format": _format,
    }  # fmt: skip
    helpers: dict[str, Any] = {
        "raise_exception": _raise, "strftime_now": _now, "namespace": _Namespace, "dict": _dict,
    }  # fmt: skip
    environment.filters.update(filters)
    environment.globals.update(helpers)
    return environment


_ENVIRONMENT = _environment()
