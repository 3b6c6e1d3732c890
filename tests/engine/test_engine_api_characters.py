"""Characters of several bytes over HTTP: a model whose every token is one byte, as byte-level and byte-fallback tokenizers have
them for emojis. A streamed answer has each character whole in one chunk, equals the whole answer, and every chunk is UTF-8.

What a model writes may be no UTF-8 at all: that is U+FFFD, and it is streamed like other text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, Serving, Tokens, make_model, serving

TEXTS = (
    "caf\u00e9 \u4e16\u754c",
    "\N{GRINNING FACE}\N{GRINNING FACE} ok",
    "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER} \N{REGIONAL INDICATOR SYMBOL LETTER C}\N{REGIONAL INDICATOR SYMBOL LETTER H}",
    "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}a\N{REPLACEMENT CHARACTER}",
)
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BROKEN = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="module", params=[Tokens.BYTE_LEVEL, Tokens.BYTE_FALLBACK], ids=lambda tokens: tokens.value)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("characters")
    uri = make_model(folder / "model", request.param)
    with serving(uri, folder / "termination", "--max-model-len=4096") as running:
        yield running


def asked(path: str, **more: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {"model": NAME, "max_tokens": 100, "temperature": 0, **prompt, **more}


def streamed(served: Serving, path: str, **more: Any) -> list[str]:
    """Return the texts of the chunks. Raises UnicodeDecodeError where one is no UTF-8."""
    reply = served.post(path, asked(path, stream=True, **more))
    assert reply.status == 200, reply.body
    events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    texts = [choice["delta"].get("content") if path == CHAT else choice["text"] for choice in choices]
    return [text for text in texts if text]


def whole(served: Serving, path: str, **more: Any) -> str:
    choice = served.answer(path, asked(path, **more))["choices"][0]
    return str(choice["message"]["content"] if path == CHAT else choice["text"])


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("text", TEXTS)
def test_each_character_comes_whole_in_one_chunk(served: Serving, path: str, text: str) -> None:
    pieces = streamed(served, path, guided_choice=[text])
    assert "".join(pieces) == text == whole(served, path, guided_choice=[text])
    assert pieces == list(text), "a byte a token: a chunk has exactly one character, as soon as it is there"


@pytest.mark.parametrize("stop", ["\N{GRINNING FACE}", "\u754c"])
def test_a_stop_string_of_several_bytes_is_found_and_never_shown(served: Serving, stop: str) -> None:
    text = "a\u4e16\u754c\N{GRINNING FACE}b"
    pieces = streamed(served, COMPLETION, guided_choice=[text], stop=[stop])
    assert "".join(pieces) == text.partition(stop)[0] == whole(served, COMPLETION, guided_choice=[text], stop=[stop])


@pytest.mark.parametrize("length", range(1, 8))
def test_an_answer_that_ends_within_a_character_says_so_with_one_sign_for_it(served: Serving, length: int) -> None:
    """max_tokens cuts: the whole characters before it are there, and nothing of the cut one but U+FFFD."""
    text = "\u00e9\N{GRINNING FACE}\u4e16"
    pieces = streamed(served, COMPLETION, guided_choice=[text], max_tokens=length)
    shown = "".join(pieces)
    complete = text.encode()[:length].decode(errors="ignore")
    assert shown == whole(served, COMPLETION, guided_choice=[text], max_tokens=length)
    assert shown.rstrip(BROKEN) == complete
    assert all(BROKEN not in piece or piece.strip(BROKEN) == "" for piece in pieces)


@pytest.mark.parametrize("seed", range(3))
def test_bytes_that_are_no_text_are_streamed_as_they_come(served: Serving, seed: int) -> None:
    """A random model writes random bytes. Nothing waits for the end, and the stream is the whole answer."""
    options = {"temperature": 1.0, "seed": seed, "ignore_eos": True, "max_tokens": 200}
    pieces = streamed(served, COMPLETION, **options)
    assert "".join(pieces) == whole(served, COMPLETION, **options)
    assert BROKEN in "".join(pieces)
    assert len(pieces) > 100


def test_an_answer_of_replacement_characters_is_streamed(served: Serving) -> None:
    """They are text: an answer that ended with them waited for its end, and each further one cost more than the one before."""
    pieces = streamed(served, COMPLETION, guided_regex=f"{BROKEN}{{60}}", max_tokens=400)
    assert pieces == [BROKEN] * 60


def test_the_bytes_of_log_probabilities_are_those_of_the_text(served: Serving) -> None:
    text = TEXTS[2]
    reply = served.answer(CHAT, asked(CHAT, guided_choice=[text], logprobs=True))
    data = [byte for entry in reply["choices"][0]["logprobs"]["content"] for byte in entry["bytes"]]
    assert re.match(re.escape(text), bytes(data).decode())


def test_a_prompt_of_many_bytes_comes_back_as_it_was(served: Serving) -> None:
    prompt = " ".join(TEXTS)
    answer = served.answer(COMPLETION, asked(COMPLETION, prompt=prompt, echo=True, max_tokens=1, guided_choice=["x"]))
    assert answer["choices"][0]["text"] == f"{prompt}x"
