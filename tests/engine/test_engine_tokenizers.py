"""Protects tokenizers and chat templates: GGUF's equal transformers', templates render as transformers renders them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.files import SMOLLM2, small_llama
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaTokenizer, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.checkpoint.gguf_file import GGUF
from pagefleet_engine.model.text import tokenizer, tokenizer_gguf
from pagefleet_engine.model.text.sentence_piece import merges_of

TEXT = st.one_of(st.text(), st.text(alphabet="aéZ 日1234\n\t'sTl/_.<>😀", max_size=60))
CORPUS = [
    "Hello world, it's 1234 o'clock. Don't stop!",
    "Ünïcode 日本語 text\n\n  with   spaces/and\tTABS",
    "HTTPServer",
]


def trained(rule: str) -> Tokenizer:
    """Train a byte-level BPE like those of the models' own tokenizer.json files."""
    fast = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(rule), "isolated"), level])
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|begin|>", "<|end|>"]
    fast.train_from_iterator(
        CORPUS * 4,
        trainers.BpeTrainer(vocab_size=340, show_progress=False, initial_alphabet=alphabet, special_tokens=special),
    )
    return fast


def write(path: Path, kind: str, tokens: list[str], types: list[int], **more: Any) -> GGUF:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, value in more.items():
        getattr(writer, name)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUF(path)


@pytest.mark.parametrize(
    ("pre", "rule", "begins"),
    [
        ("llama-bpe", tokenizer_gguf.LLAMA3, True),
        ("qwen2", tokenizer_gguf.QWEN2, False),
        ("tekken", tokenizer_gguf.TEKKEN, True),
    ],
)
def test_byte_level_gguf_tokenizers_equal_the_ones_they_come_from(
    pre: str, rule: str, begins: bool, tmp_path: Path
) -> None:
    theirs = trained(rule)
    tokens = [theirs.id_to_token(index) for index in range(theirs.get_vocab_size())]
    merges = [" ".join(pair) for pair in _merges(theirs)]
    path = tmp_path / "model.gguf"
    write(
        path, "gpt2", tokens, [3, 3] + [1] * (len(tokens) - 2),
        add_tokenizer_pre=pre, add_token_merges=merges, add_bos_token_id=0, add_eos_token_id=1,
    )  # fmt: skip
    ours = tokenizer.load(source.resolve(f"file://{path}"))

    @settings(max_examples=100)
    @given(TEXT)
    def equal(text: str) -> None:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text).ids
        assert ours.encode(text) == [0] * begins + ids
        assert ours.decode(ids) == text
        assert b"".join(ours.token_bytes(token) for token in ids) == text.encode()

    equal()
    assert ours.encode("<|begin|>a<|end|>", add_special_tokens=False)[::2] == [0, 1]
    assert (ours.token_bytes(0), ours.token_bytes(10_000), ours.eos_token_ids) == (b"<|begin|>", b"", (1,))
    assert ours.backend.get_vocab_size() == ours.vocab_size == len(tokens)


def _merges(fast: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(fast.to_str())["model"]["merges"]]


PIECES = ["▁", "e", "l", "o", "h", "t", "w", "r", "d", "he", "ll", "llo", "▁w", "or", "▁wor", "ld", "▁the", "▁t", "th",
          "the", "▁world", "hello", "▁hello", "▁▁", "a", "."]  # fmt: skip


def sentence_piece(path: Path, **more: Any) -> None:
    """Scores fall from token to token, as in Llama 2's vocabulary; single characters come last."""
    pieces = sorted(PIECES, key=lambda piece: (len(piece) == 1, PIECES.index(piece)))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *pieces, "<|user|>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4]
    scores = [0.0] * 259 + [-float(index) for index in range(len(pieces))] + [0.0]
    write(
        path, "llama", tokens, types, add_token_scores=scores, add_bos_token_id=1, add_eos_token_id=2,
        add_unk_token_id=0, **more,
    )  # fmt: skip


def best_merges(text: str, tokens: dict[str, float]) -> list[str]:
    """SentencePiece's algorithm in its plainest form: the best neighbours merge, the leftmost of equals first."""
    symbols = list(text)
    while True:
        merges = [
            (-tokens[left + right], index)
            for index, (left, right) in enumerate(pairwise(symbols))
            if left + right in tokens
        ]
        if not merges:
            return symbols
        index = min(merges)[1]
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]


def test_a_sentence_piece_gguf_tokenizer_merges_by_score(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    sentence_piece(path)
    ours = tokenizer.load(source.resolve(f"file://{path}"))
    file = GGUF(path)
    tokens, scores = file.field("tokenizer.ggml.tokens"), file.field("tokenizer.ggml.scores")
    ids = {token: index for index, token in enumerate(tokens)}
    normal = {token: scores[index] for token, index in ids.items() if 259 <= index < len(tokens) - 1}
    theirs = LlamaTokenizer(vocab=ids, merges=merges_of(tokens, scores, file.field("tokenizer.ggml.token_type")))

    @settings(max_examples=200)
    @given(st.one_of(st.text(max_size=20), st.text(alphabet="helowrdta. 日\n", max_size=40)))
    def equal(text: str) -> None:
        expected: list[int] = []
        for symbol in best_merges("▁" + text.replace(" ", "▁"), normal) if text else []:
            expected += [ids[symbol]] if symbol in normal else [3 + value for value in symbol.encode()]
        encoded = ours.encode(text, add_special_tokens=False)
        assert encoded == expected
        assert ours.encode(text) == [1, *expected]
        assert ours.decode(encoded) == text
        assert b"".join(ours.token_bytes(token) for token in encoded).decode() == " " * bool(text) + text
        if text and not text.startswith((" ", "▁")):  # transformers puts no second space before a first one
            assert theirs(text, add_special_tokens=False)["input_ids"] == expected

    equal()
    user = ids["<|user|>"]
    assert ours.encode("<s>hello<|user|>hello")[1:] == [1, ids["▁hello"], user, ids["▁hello"]]
    assert [ours.token_text(token) for token in (1, user, 3 + 0xFF)] == ["<s>", "<|user|>", "�"]


def test_no_space_is_put_before_a_text_when_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    sentence_piece(path, add_add_space_prefix=False, add_add_bos_token=False, add_add_eos_token=True)
    ours = tokenizer.load(source.resolve(f"file://{path}"))
    assert [ours.token_text(token) for token in ours.encode("hello the")] == ["hello", " the", "</s>"]
    assert ours.decode(ours.encode(" hello")) == " hello"


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("t5", {}, "tokenizer 't5' is not supported; supported: gpt2, llama"),
        ("gpt2", {"add_tokenizer_pre": "falcon"}, "'falcon' is not supported; supported: default, gpt-2"),
        ("gpt2", {"add_token_merges": ["a b"]}, r"merge \('a', 'b'\) gives no token"),
        ("llama", {}, "2 tokens and 0 scores"),
        ("llama", {"add_token_scores": [0.0, 0.0], "add_unk_token_id": 9}, "unknown token 9 is none of its 2"),
    ],
)
def test_tokenizers_that_are_not_known_are_refused(
    kind: str, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write(path, kind, ["a", "b"], [1, 1], **more)
    with pytest.raises(ModelError, match=message):
        tokenizer.load(source.resolve(f"file://{path}"))


def test_a_damaged_tokenizer_file_is_refused(tmp_path: Path) -> None:
    LlamaConfig(vocab_size=340).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    for content, message in (("{}", "tokenizer.json of .* cannot be used"), (None, "holds no tokenizer.json")):
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        else:
            (tmp_path / "tokenizer.json").unlink()
        with pytest.raises(ModelError, match=message):
            tokenizer.load(source.resolve(f"file://{tmp_path}"))


def test_a_file_saved_while_training_cuts_no_prompt_and_fills_none_up(tmp_path: Path) -> None:
    small_llama(tmp_path)
    fast = trained(tokenizer_gguf.QWEN2)
    tokens = fast.encode(CORPUS[0], add_special_tokens=False).ids
    fast.enable_truncation(4)
    fast.enable_padding(length=4096, pad_id=0, pad_token="<|begin|>")
    fast.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer.load(source.resolve(f"file://{tmp_path}")).encode(CORPUS[0]) == tokens
    assert len(tokens) > 4


def test_long_texts_let_other_threads_run() -> None:
    ours = tokenizer.load(source.resolve(SMOLLM2))
    text, worker_ran, done = "The quick brown fox. " * 20_000, [0], threading.Event()

    def count() -> None:
        while not done.wait(0.001):
            worker_ran[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    started = time.perf_counter()
    ours.encode(text)
    seconds, ran = time.perf_counter() - started, worker_ran[0]
    done.set()
    thread.join()
    assert ran > 5, seconds  # of up to 1,000 a second; with the lock held it is 0 or 1


MESSAGES = [
    {"role": "system", "content": "Be <brief> & \"kind\"."},
    {"role": "user", "content": "  Was ist 12 + 30? 日本 "},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 12}}}]},
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
TEMPLATES = [
    "{% for m in messages %}\n  {% if loop.first %}\n{{ bos_token }}{% endif %}<{{ m.role }}>{{ m['content'] | trim }}\n{% endfor %}",
    "{{ tools | tojson }}{{ messages[2].tool_calls | tojson(indent=2) }}{{ {'a': '<é>'} | tojson }}",
    "{%- for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor -%}",
    "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n ~ '/' ~ ns.found }}",
    "{{ enable_thinking is defined and not enable_thinking }}{{ messages | map(attribute='role') | join(', ') }}{{ 'ab' * 3 }}",
    "{% macro say(x) %}[{{ x }}]{% endmacro %}{{ say(messages[0]['content'].split(' ')[-1]) }}{{ messages[::-1][0].role }}",
    "{{ 'x-y'.replace('-', '+') }}{{ '%s:%d' % ('a', 3) }}{{ '{}'.format(5) }}{{ 'a\\nb' | indent(4) }}{{ documents }}",
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}{{ dict(a=1) | tojson }}{{ nothing }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_render_as_transformers_renders_them(template: str) -> None:
    chat = tokenizer.ChatTemplates({"default": template}, {"bos_token": "<s>"})
    reference = _compile_jinja_template(template)
    for prompt in (True, False):
        expected = reference.render(
            messages=MESSAGES, tools=TOOLS, documents=None, add_generation_prompt=prompt, bos_token="<s>",
            enable_thinking=False,
        )  # fmt: skip
        assert chat.render(MESSAGES, TOOLS, None, {"enable_thinking": False}, prompt) == expected


@pytest.mark.parametrize(
    "template", [TEMPLATES[0], "{% for m in messages %}{{ m.role }}:{{ m.content }}<end>{% endfor %}"]
)
@pytest.mark.parametrize("last", ["The answer is ", "The answer is"])
def test_a_last_message_is_continued_as_transformers_does_it(template: str, last: str) -> None:
    chat = tokenizer.ChatTemplates({"default": template}, {"bos_token": "<s>"})
    messages = [*MESSAGES[:2], {"role": "assistant", "content": last}]
    expected = render_jinja_template(
        [messages], chat_template=template, continue_final_message=True, bos_token="<s>"
    )[0][0]  # fmt: skip
    assert chat.render(messages, add_generation_prompt=False, continue_final_message=True) == expected
    with pytest.raises(ValueError, match="leaves the last message out"):
        chat.render(messages, template="x", continue_final_message=True)
    with pytest.raises(ValueError, match="no text in the last message"):
        chat.render(MESSAGES, continue_final_message=True)


def test_a_folder_s_templates_are_found_where_transformers_looks(tmp_path: Path) -> None:
    LlamaConfig(vocab_size=340).save_pretrained(tmp_path)
    fast = PreTrainedTokenizerFast(tokenizer_object=trained(tokenizer_gguf.QWEN2), bos_token="<|begin|>")
    fast.chat_template = {"default": "{{ bos_token }}{{ messages[0].content }}", "tool_use": "T{{ tools | length }}"}
    fast.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    load: Callable[..., tokenizer.Tokenizer] = tokenizer.load
    ours = load(source.resolve(f"file://{tmp_path}"))
    assert ours.chat.render(MESSAGES) == '<|begin|>Be <brief> & "kind".'
    assert ours.chat.render(MESSAGES, TOOLS) == "T1"
    assert ours.chat.render(MESSAGES, TOOLS, template="mine") == "mine"
    ids = ours.encode(ours.chat.render(MESSAGES), add_special_tokens=False)
    assert ids == fast.apply_chat_template(MESSAGES, return_dict=False)
    (tmp_path / "other.jinja").write_text("other {{ messages | length }}")
    ours = load(source.resolve(f"file://{tmp_path}"), tmp_path / "other.jinja")
    assert ours.chat.render(MESSAGES, TOOLS) == "other 3"
    with pytest.raises(ModelError, match="cannot be read") as raised:
        load(source.resolve(f"file://{tmp_path}"), tmp_path / "none.jinja")
    assert raised.value.field == "spec.model.chatTemplate"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for x in %}", "refuses these messages"),
        ("{{ messages.__class__.__mro__ }}{{ ''.__class__ }}", "refuses"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "refuses"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ 'x' * 99999999999 }}", "characters"),
        ("{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "characters"),
        ("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "characters"),
        ("{{ '%999999999d' % 1 }}", "width"),
        ("{{ '{:>{}}'.format(1, 999999999) }}", "not filled with numbers"),
        ("{{ 'a'.ljust(999999999) }}", "not filled with numbers"),
        ("{{ 9 ** 9999999 }}", "not computed"),
        ("{{ ('x' * 9999999) | replace('x', 'yyyy') }}", "characters"),
        ("{{ range(99999) | join('x' * 999) }}", "characters"),
        ("{{ namespace(_x=1) }}", "cannot hold"),
        ("{{ 1 + 'a' }}", "cannot render"),
        ("{{ missing | tojson }}", "cannot render"),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "cannot render"),
        ("{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}", "cannot render"),
        ("x" * (1 << 19), "may have 262144 characters"),
    ],
)  # fmt: skip
def test_templates_out_of_bounds_are_refused(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer.ChatTemplates({"default": template}, {}).render(MESSAGES)


def test_a_template_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefleet_engine.model.text.chat.MAX_SECONDS", 0.2)
    endless = (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% if messages[0] %}{% endif %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="takes longer than"):
        tokenizer.ChatTemplates({"default": endless}, {}).render(MESSAGES)
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.ChatTemplates({}, {}).render(MESSAGES)
