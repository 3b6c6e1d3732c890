"""Bodies, keys, names and continued messages: bounded, and refused in a way that says what is wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Fast
from tokenizers.models import BPE

from pagefleet_engine.api.backend.models import Models
from pagefleet_engine.api.base.auth import Keys
from pagefleet_engine.api.base.errors import ApiError, last_attempt
from pagefleet_engine.api.parameters import body
from pagefleet_engine.api.parameters.conversation import Conversation
from pagefleet_engine.api.planning import prompts
from pagefleet_engine.model.text.chat import ChatTemplates
from pagefleet_engine.model.text.tokenizer import Tokenizer


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"nul", b"\xff", b'"\xed\xa0\x80"', b'"\\ud800"', b"[NaN]", b"[1e999]", b"[" * 100_000,
        b"[" * 102 + b"]" * 102, b'{"a":' * 500 + b"1" + b"}" * 500, b"[" + b"[]," * 60_000 + b"[]]",
        b"[" + b"1," * 300_000 + b"1]", b'["' + b'[\\"' * 400_000, b"9" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_bounded_json_is_refused_soon(data: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ApiError) as refused:
        body.decode(data)
    assert time.process_time() - began < 0.1
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_texts_may_hold_what_structure_may_not() -> None:
    text = '[{,"\\' * 100_000
    assert body.decode(json.dumps({"a": text}).encode()) == {"a": text}
    assert body.decode(b"[" * 100 + b"]" * 100) is not None


def test_keys_change_with_their_file_and_stay_when_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a\n  b  \n\n")
    keys = Keys(file, "c,d e")
    assert [keys.valid(key) for key in ("a", "b", "c", "d", "e", "", "ab")] == [True] * 5 + [False] * 2
    fresh = tmp_path / "fresh"
    fresh.write_text("z\n")
    fresh.replace(file)
    assert (keys.valid("z"), keys.valid("a"), keys.valid("c")) == (True, False, True)
    file.unlink()
    assert (keys.valid("z"), keys.valid("a")) == (True, False)
    with pytest.raises(OSError):
        Keys(tmp_path / "none")


def test_an_empty_file_lets_nobody_in_and_no_file_everybody(tmp_path: Path) -> None:
    (tmp_path / "keys").touch()
    assert Keys(tmp_path / "keys").needed
    assert not Keys(tmp_path / "keys").valid("")
    assert not Keys(None, " , ").needed


def test_models_have_names_and_adapters() -> None:
    models = Models(["a", "b"], [("x", "/x")])
    assert (models.adapter("b"), models.adapter("x")) == (None, "x")
    assert [(one["id"], one["parent"]) for one in models.documents(5)] == [("a", None), ("b", None), ("x", "a")]
    models.add("y", "/y")
    assert models.document("y", None)["root"] == "/y"
    models.remove("x")
    for name in ("x", "", "a/b"):
        with pytest.raises(ApiError) as refused:
            models.adapter(name)
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")
    for name in ("a", "y"):
        with pytest.raises(ApiError):
            models.check_new(name)


def rendered(template: str, final: str) -> str:
    made = Tokenizer(Fast(BPE()), (), ChatTemplates({"default": template}, {}))
    messages = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": final})
    return prompts.render(made, Conversation(messages, add_generation_prompt=False, continue_final_message=True))


@pytest.mark.parametrize(
    ("template", "final", "continued"),
    [
        ("{{ m.content }}", "I am", "<user>hi</user><assistant>I am"),
        ("{{ m.content }}", "I am ", "<user>hi</user><assistant>I am "),
        ("{{ m.content | trim }}", " I am ", "<user>hi</user><assistant>I am"),
        ("{{ m.content }}", "hi", "<user>hi</user><assistant>hi"),
    ],
)
def test_a_final_message_ends_the_prompt(template: str, final: str, continued: str) -> None:
    whole = "{% for m in messages %}<{{ m.role }}>" + template + "</{{ m.role }}>{% endfor %}"
    assert rendered(whole, final) == continued


def test_a_template_that_changes_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(ValueError, match="cannot be continued"):
        rendered("{{ messages[1].content | upper }}", "I am")


@pytest.mark.parametrize(
    ("code", "attempt", "status"),
    [
        ("engine_died", "", 503), ("engine_died", "1", 503), ("engine_died", "2", 500), ("engine_died", "11", 500),
        ("engine_died", "x", 503), ("engine_died", "²", 503), ("engine_died", "-2", 503), ("draining", "2", 503),
    ],
)  # fmt: skip
def test_an_engine_that_ends_on_a_retry_is_the_last_that_meets_the_request(
    code: str, attempt: str, status: int
) -> None:
    error = last_attempt(ApiError(503, "why", code=code, retry_after=5), attempt)
    assert (error.status, error.code, error.message) == (status, code, "why")
    assert error.response().headers["x-pagefleet-error"] == code
    assert ("Retry-After" in error.response().headers) == (status == 503)
    assert ApiError(429, "why", code="queue_full").response().headers["x-pagefleet-error"] == "queue_full"
    assert "x-pagefleet-error" not in ApiError(429, "why", code="rate_limited").response().headers
