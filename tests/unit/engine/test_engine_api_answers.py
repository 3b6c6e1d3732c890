"""One answer's tokens become text, calls and log probabilities that fit together, whatever ends it."""

from __future__ import annotations

import pytest

from pagefleet_engine.api.answers import logprobs
from pagefleet_engine.api.answers.answer import Answer, Piece, Scored
from pagefleet_engine.api.answers.text import TextStream
from pagefleet_engine.api.parsing.deltas import Functions
from pagefleet_engine.api.parsing.json_calls import JsonCalls
from pagefleet_engine.api.parsing.reasoning import Reasoning
from pagefleet_engine.api.parsing.registry import Dialect, Style
from pagefleet_engine.core.requests import TokenLogprobs, TokenOutput

EOS = 0


class Bytes:
    """A vocabulary of bytes."""

    def token_text(self, token: int) -> str:
        return bytes([token]).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


WORDS = logprobs.Vocabulary(Bytes())


def token_bytes(token: int) -> bytes:
    """An id is its byte."""
    return bytes([token])


def decode(ids: list[int]) -> str:
    return bytes(token for token in ids if token != EOS).decode(errors="replace")


def output(tokens: bytes, finish: str | None = None) -> TokenOutput:
    entries = tuple(TokenLogprobs(token, -0.5, 1, ((token, -0.5), (1, -2.0))) for token in tokens)
    return TokenOutput("r", tuple(tokens), finish, 1, 0, logprobs=entries)


def run(answer: Answer, *outputs: TokenOutput) -> tuple[str, list[Scored], str | None]:
    pieces = [answer.take(one) for one in outputs]
    scored = [one for piece in pieces for one in piece.scored]
    return "".join(piece.text for piece in pieces), scored, answer.finish


def test_the_token_that_ends_an_answer_is_no_part_of_it() -> None:
    text, scored, finish = run(
        Answer(TextStream(decode, token_bytes, ()), {EOS}), output(b"ab"), output(b"c\0", "stop")
    )
    assert (text, finish, [one.offset for one in scored]) == ("abc", "stop", [0, 1, 2])


def test_a_grammars_end_has_no_token_of_its_own() -> None:
    assert run(Answer(TextStream(decode, token_bytes, ()), {EOS}), output(b"}", "stop"))[0] == "}"


def test_tokens_of_a_cut_stop_string_have_no_logprobs_and_nothing_comes_after_it() -> None:
    answer = Answer(TextStream(decode, token_bytes, ("cd",)), {EOS})
    text, scored, finish = run(answer, output(b"abc"), output(b"def"), output(b"xyz", "length"))
    assert (text, finish) == ("ab", "stop")
    assert bytes(one.logprobs.token for one in scored) == b"ab"
    assert answer.tokens == 4
    assert answer.take(output(b"more")) == Piece()


def test_tokens_of_one_character_share_its_offset_and_leave_with_it() -> None:
    answer = Answer(TextStream(decode, token_bytes, ()), {EOS})
    first = answer.take(output("aé".encode()[:2]))
    assert (first.text, len(first.scored)) == ("a", 1)
    second = answer.take(output("é!".encode()[1:], "length"))
    assert second.text == "é!"
    assert [one.offset for one in second.scored] == [1, 1, 2]


def test_a_mute_answer_only_ends() -> None:
    answer = Answer(TextStream(decode, token_bytes, ()), {EOS}, mute=True)
    assert run(answer, output(b"a", "length")) == ("", [], "length")
    assert answer.tokens == 0


def test_calls_are_found_and_change_why_it_ended() -> None:
    answer = Answer(TextStream(decode, token_bytes, ()), {EOS}, parser=JsonCalls(Functions({"f": {}}), tagged=True))
    written = b'say <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    pieces = [answer.take(output(bytes([byte]))) for byte in written] + [answer.take(output(b"\0", "stop"))]
    deltas = [delta for piece in pieces for delta in piece.deltas]
    assert "".join(delta.content for delta in deltas) == "say"
    assert [delta.name for delta in deltas if delta.name] == ["f"]
    assert pieces[-1].finish == answer.finish == "tool_calls"


@pytest.mark.parametrize("rest", ["", " 4", "\n\n4"])
def test_tokens_of_reasoning_that_bring_no_text_yet_are_counted(rest: str) -> None:
    """Spaces are held back, and a character of several tokens comes with the last of them."""
    thought = "<think>\n\nd\u00e9j\u00e0 \n\n\n\nvu"
    parser = Dialect(Style.HERMES, Reasoning.QWEN3).parser(None, None, forced=False)
    answer = Answer(TextStream(decode, token_bytes, ()), {EOS}, parser=parser)
    for byte in f"{thought}</think>{rest}".encode():
        answer.take(output(bytes([byte])))
    answer.take(output(b"", "length"))
    assert answer.reasoning == len(thought.encode()) + (0 if rest else len("</think>"))


def test_a_deadline_is_no_call() -> None:
    answer = Answer(TextStream(decode, token_bytes, ()), {EOS}, parser=JsonCalls(Functions({"f": {}}), tagged=True))
    answer.take(output(b'<tool_call>{"name": "f", "arguments": {}}</tool_call>'))
    assert answer.take(output(b"", "deadline")).finish == "deadline"


def test_the_mean_logprob_is_per_token() -> None:
    answer = Answer(TextStream(decode, token_bytes, ()), {EOS})
    run(answer, output(b"abcd"))
    assert answer.mean_logprob == -0.5


def test_logprobs_are_openais_objects() -> None:
    scored = [Scored(TokenLogprobs(97, -0.25, 2, ((98, -0.1), (99, -9.0))), 0), Scored(
        TokenLogprobs(98, float("-inf"), 9, ((99, -0.1), (97, -1.0))), 1)]  # fmt: skip
    assert logprobs.chat(scored, WORDS, 1)["content"][0] == {
        "token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -0.1, "bytes": [98]}],
    }  # fmt: skip
    assert logprobs.completion(scored, WORDS, 1) == {
        "tokens": ["a", "b"], "token_logprobs": [-0.25, -9999.0], "text_offset": [0, 1],
        "top_logprobs": [{"b": -0.1, "a": -0.25}, {"c": -0.1, "b": -9999.0}],
    }  # fmt: skip
    assert logprobs.completion(scored, WORDS, 0, first=True)["token_logprobs"][0] is None
    assert logprobs.prompt([scored[0].logprobs], WORDS, 1) == [
        None,
        {"98": {"logprob": -0.1, "rank": 1, "decoded_token": "b"}, "97": {"logprob": -0.25, "rank": 2, "decoded_token": "a"}},
    ]  # fmt: skip


@pytest.mark.parametrize("eager", [False, True])
def test_a_call_that_the_token_limit_cuts_is_no_complete_call(eager: bool) -> None:
    calls = JsonCalls(Functions({"f": {}}, eager=eager), tagged=True)
    answer = Answer(TextStream(decode, token_bytes, ()), {EOS}, parser=calls)
    answer.take(
        output(b'<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "f", "arguments": {"a')
    )
    assert answer.take(output(b'": 1', "length")).finish == "length"
