"""Streamed text equals the whole text whatever the token boundaries, and no part of a stop string is ever emitted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from pagefleet_engine.api.answers.text import TextStream, is_cut
from pagefleet_engine.model.text.chat import ChatTemplates
from pagefleet_engine.model.text.tokenizer import Tokenizer as Words


def token_bytes(token: int) -> bytes:
    """An id is its byte."""
    return bytes([token])


def decode(ids: list[int]) -> str:
    """Decode with a byte-level tokenizer: ids are bytes."""
    return bytes(ids).decode(errors="replace")


def streamed(data: bytes, sizes: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """Return the pieces emitted when `data` comes in groups of `sizes`, and whether a stop string ended them."""
    text, pieces, at = TextStream(decode, token_bytes, stops), [], 0
    while at < len(data) and not text.stopped:
        size = sizes[at % len(sizes)]
        pieces.append(text.feed(list(data[at : at + size])))
        at += size
    pieces.append(text.finish())
    return pieces, text.stopped


@pytest.mark.parametrize("sizes", [[1], [2], [3, 1], [7]])
def test_characters_split_over_tokens_come_whole(sizes: list[int]) -> None:
    text = "héllo – 世界 \N{SLIGHTLY SMILING FACE} end"
    pieces, stopped = streamed(text.encode(), sizes)
    assert "".join(pieces) == text
    assert not stopped
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


def test_bytes_that_never_become_a_character_are_shown_at_the_end() -> None:
    pieces, _ = streamed(b"ab\xe4\xb8", [1])
    assert "".join(pieces).startswith("ab")
    assert "".join(pieces) != "ab"


@pytest.mark.parametrize(
    ("tail", "cut"),
    [(b"", False), (b"a", False), (b"\xc3", True), (b"\xc3\xa9", False), (b"\xe4\xb8", True), (b"\xe4\xb8\x96", False),
     (b"\xf0\x9f\x98", True), (b"\x9f\x98\x80", False), (b"\x80", False), (b"\xc0", False), (b"\xc1", False), (b"\xc2", True),
     (b"\xdf", True), (b"\xe0", True), (b"\xef", True), (b"\xf0", True), (b"\xf4", True), (b"\xf5", False), (b"\xff", False)],
)  # fmt: skip
def test_a_character_is_cut_where_more_bytes_can_complete_it(tail: bytes, cut: bool) -> None:
    assert is_cut(tail) is cut


def test_replacement_characters_that_a_model_writes_are_text_at_once() -> None:
    """And each costs as much as any other token: at most two windows are decoded."""
    sizes: list[int] = []

    def counted(ids: Sequence[int]) -> str:
        sizes.append(len(ids))
        return decode(list(ids))

    text = TextStream(counted, token_bytes, ())
    assert (
        "".join(text.feed([byte]) for byte in "\N{REPLACEMENT CHARACTER}".encode() * 500)
        == "\N{REPLACEMENT CHARACTER}" * 500
    )
    assert max(sizes) <= 6


def test_text_without_a_stop_string_in_sight_is_not_held_back() -> None:
    text = TextStream(decode, token_bytes, ("STOP",))
    assert text.feed(list(b"hello ")) == "hello "
    assert text.feed(list(b"ST")) == ""
    assert text.feed(list(b"AY")) == "STAY"


def test_a_stop_strings_beginning_at_the_end_of_the_answer_is_text() -> None:
    pieces, stopped = streamed(b"so ST", [1], ("STOP",))
    assert "".join(pieces) == "so ST"
    assert not stopped


def test_a_stop_string_of_several_byte_characters_is_found() -> None:
    pieces, stopped = streamed("東京は首都です".encode(), [1], ("首都",))
    assert ("".join(pieces), stopped) == ("東京は", True)


def test_any_grouping_of_tokens_ends_at_the_first_stop_string() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        text = "".join(rng.choice("abc") for _ in range(rng.randint(1, 30)))
        stops = tuple("".join(rng.choice("abc") for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 3)))
        pieces, stopped = streamed(text.encode(), [1], stops)
        emitted = "".join(pieces)
        ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
        if not ends:
            assert (emitted, stopped) == (text, False)
            continue
        # One token at a time: the stop string that is complete first ends the answer, at the earliest beginning of any.
        complete = text[: min(ends)]
        begin = min(complete.index(stop) for stop in stops if stop in complete)
        assert (emitted, stopped) == (text[:begin], True)


def test_a_stop_string_may_be_kept() -> None:
    text = TextStream(decode, token_bytes, ("STOP",), include_stop=True)
    assert [text.feed([byte]) for byte in b"so STOP"] == ["s", "o", " ", "", "", "", "STOP"]
    assert text.stopped and text.sent == 7


def test_the_first_tokens_are_not_looked_through_for_stop_strings() -> None:
    text = TextStream(decode, token_bytes, ("ab",), unstoppable=3)
    assert "".join(text.feed([byte]) for byte in b"abaXab") == "abaX"
    assert text.stopped


def test_an_offset_counts_characters_given_out_and_held() -> None:
    text = TextStream(decode, token_bytes, ("STOP",))
    text.feed(list("é S".encode()))
    assert (text.sent, text.offset(0xE4)) == (2, 3)
    text.feed([0xE4])
    assert (text.offset(0xB8), text.offset(ord("b"))) == (3, 4)


def test_the_space_between_a_prompt_and_its_answer_is_kept() -> None:
    """SentencePiece's decoders drop the space before a text's first word, as Llama 2's does."""
    pieces = ["\u2581my", "\u2581name", "\u2581is"]
    fast = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    spaces = decoders.Replace("\u2581", " ")
    fast.decoder = decoders.Sequence([spaces, decoders.Fuse(), decoders.Strip(" ", 1, 0)])

    def spelled(token: int) -> bytes:
        return pieces[token].encode()

    text = TextStream(fast.decode, spelled, ("is",), before=[0])
    assert (text.feed([1]), text.feed([2]), text.stopped) == (" name", " ", True)
    assert TextStream(fast.decode, spelled, ()).feed([1]) == "name"


def test_a_prompt_that_ends_within_a_character_gives_the_answer_none_of_its_bytes() -> None:
    text = TextStream(decode, token_bytes, (), before=b"ab\xc3")
    assert text.feed(b"c") + text.finish() == "c"


def test_the_tokens_before_an_answer_do_not_count_as_its_own() -> None:
    text = TextStream(decode, token_bytes, ("b",), unstoppable=2, before=b"xyz")
    assert (text.feed(b"b"), text.feed(b"b"), text.feed(b"b")) == ("b", "b", "")
    assert text.stopped


def words_of(decoder: decoders.Decoder, *pieces: str) -> Words:
    """Return a tokenizer with <unk>, <s>, </s> and then these pieces."""
    fast = Tokenizer(
        models.BPE({text: index for index, text in enumerate(("<unk>", *ENDS, *pieces))}, [], unk_token="<unk>")
    )
    fast.decoder = decoder
    fast.add_special_tokens([AddedToken(text, special=True) for text in ENDS])
    return Words(fast, (2,), ChatTemplates({}, {}))


ENDS = ("<s>", "</s>")
LLAMA = decoders.Sequence([
    decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
])  # fmt: skip


@pytest.mark.parametrize("decoder", [LLAMA, decoders.Metaspace()])
@pytest.mark.parametrize("ids", [[3, 2, 4, 5], [3, 1, 2, 4], [2, 3, 4], [3, 4, 2, 4, 3]])
def test_a_hidden_token_takes_no_space_away(decoder: decoders.Decoder, ids: list[int]) -> None:
    words = words_of(decoder, "▁Hello", "▁world", "!")
    text = TextStream(partial(words.decode, skip_special_tokens=True), words.token_bytes, ())
    assert "".join(text.feed([one]) for one in ids) + text.finish() == words.decode(ids)


GEMMA = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.mark.parametrize("decoder", [LLAMA, GEMMA, decoders.Metaspace(), decoders.Metaspace(prepend_scheme="never")])
@pytest.mark.parametrize("seed", range(5))
def test_an_answer_is_what_it_adds_to_its_prompt(decoder: decoders.Decoder, seed: int) -> None:
    """Spaces of all kinds, characters of several byte tokens, and hidden tokens, in the prompt's end and in the answer."""
    words, draw = words_of(decoder, *BYTES, "▁", "▁▁", "▁a", "▁b", "a", "中", "\n", "."), random.Random(seed)
    characters = [[3 + byte for byte in character.encode()] for character in "Ω한☃😀"]
    singles = [[token] for token in range(words.vocab_size) if not 3 <= token < 3 + 256]
    fallback = not isinstance(decoder, decoders.Metaspace)  # which knows no byte tokens
    for _ in range(300):
        parts = [draw.choice(characters if fallback and draw.random() < 0.4 else singles) for _ in range(12)]
        at = draw.randrange(12)
        prompt = [token for part in parts[:at] for token in part]
        answer = [token for part in parts[at:] for token in part]
        text = TextStream(words.decode, words.token_bytes, (), before=prompt[-8:])
        written = "".join(text.feed([token]) for token in answer) + text.finish()
        assert words.decode(prompt) + written == words.decode(prompt + answer), (prompt, answer)


def test_a_token_s_offset_is_where_its_text_begins() -> None:
    """Characters may begin within a token, end within one, or never be complete."""
    rng = random.Random(6)
    vocabulary = [b"a", b"\xff", b"\xe0", b"\x80", b"\xc3", b"ab\xe4", b"\xb8\x96", b"\x96b\xe4\xb8", "é世".encode()]
    for _ in range(3000):
        ids = rng.choices(range(len(vocabulary)), k=rng.randint(1, 8))
        parts = [vocabulary[token] for token in ids]
        text = TextStream(
            lambda some: decode(list(b"".join(vocabulary[one] for one in some))), vocabulary.__getitem__, ()
        )
        offsets = []
        for token in ids:
            offsets.append(text.offset(token))
            text.feed([token])
        for at, offset in enumerate(offsets):
            before, whole = decode(list(b"".join(parts[:at]))), decode(list(b"".join(parts)))
            within = len(before) + len(decode(list(b"".join(parts[at:])))) > len(whole)
            assert offset == len(before) - within, (parts, offsets)
