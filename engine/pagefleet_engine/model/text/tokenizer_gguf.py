"""Builds a tokenizer from GGUF metadata, as llama.cpp reads it: byte-level BPE ("gpt2") and SentencePiece ("llama").

llama.cpp's names and rules: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.gguf_file import GGUF
from pagefleet_engine.model.text import sentence_piece
from pagefleet_engine.model.text.sentence_piece import NORMAL_TOKEN, add_ends

# The rules of the models' own tokenizer.json files. LLAMA3 and QWEN2 differ in how many digits stand together.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BEGINS_WITH_BOS = (
    "llama-bpe",
    "llama3",
    "llama-v3",
    "tekken",
)  # these also take whole words of the vocabulary as they are
PRE_TOKENIZERS = ("default", "gpt-2", "llama-bpe", "qwen2", "smollm", "tekken")


def build(file: GGUF) -> Tokenizer:
    """The tokenizer. Raises ModelError for a kind that is not known, or lists that do not fit each other."""
    kind, splitter = file.field("tokenizer.ggml.model"), file.field("tokenizer.ggml.pre")
    tokens: list[str] = file.field("tokenizer.ggml.tokens") or []
    types: list[int] = file.field("tokenizer.ggml.token_type") or [NORMAL_TOKEN] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise ModelError(SOURCE, f"the GGUF file has {len(tokens)} tokens and {len(types)} token types")
    match kind:
        case "gpt2":
            fast = _byte_level(file, tokens, splitter)
        case "llama":
            fast = _sentence_piece(file, tokens, types)
        case _:
            raise ModelError(SOURCE, f"the GGUF file's tokenizer {kind!r} is not supported; supported: gpt2, llama")
    sentence_piece.add_named(fast, tokens, types)
    _add_ends(fast, file, tokens, begins=kind == "llama" or splitter in BEGINS_WITH_BOS)
    return fast


def special_tokens(file: GGUF) -> dict[str, str]:
    """bos_token and its like, as chat templates name them."""
    tokens: list[str] = file.field("tokenizer.ggml.tokens") or []
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        name: tokens[index]
        for name, key in named.items()
        if (index := file.field(f"tokenizer.ggml.{key}_token_id")) is not None and 0 <= index < len(tokens)
    }


def _byte_level(file: GGUF, tokens: Sequence[str], splitter: str | None) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in file.field("tokenizer.ggml.merges") or []]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    damaged = next((merge for merge in merges if len(merge) != 2 or "".join(merge) not in vocabulary), None)
    if damaged is not None:
        raise ModelError(SOURCE, f"the GGUF file's merge {damaged!r} gives no token")
    fast = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitter in BEGINS_WITH_BOS))
    fast.pre_tokenizer = _pre_tokenizer(splitter)
    fast.decoder = decoders.ByteLevel()
    return fast


def _pre_tokenizer(name: str | None) -> pre_tokenizers.PreTokenizer:
    """The rules that split text before byte-level BPE."""
    match name:
        case "gpt-2" | "default" | None:
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        case "llama-bpe" | "llama3" | "llama-v3":
            rule = LLAMA3
        case "qwen2" | "deepseek-r1-qwen":
            rule = QWEN2
        case "tekken":
            rule = TEKKEN
        case _:
            raise ModelError(
                SOURCE,
                f"the GGUF file's pre-tokenizer {name!r} is not supported; supported: {', '.join(PRE_TOKENIZERS)}; "
                "or use tokenizer.json beside safetensors",
            )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(rule), "isolated"), byte_level])


def _sentence_piece(file: GGUF, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    """SentencePiece's BPE: of all neighbours that form a token, those of the highest score merge first. Text that forms no
    token falls back to its UTF-8 bytes. A space is put before each text, also behind a special token.
    """
    scores: list[float] = file.field("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise ModelError(SOURCE, f"the GGUF file has {len(tokens)} tokens and {len(scores)} scores")
    unknown = int(_or(file.field("tokenizer.ggml.unknown_token_id"), 0))
    if not 0 <= unknown < len(tokens):
        raise ModelError(SOURCE, f"the GGUF file's unknown token {unknown} is none of its {len(tokens)}")
    prefix = bool(_or(file.field("tokenizer.ggml.add_space_prefix"), True))
    return sentence_piece.build(tokens, scores, types, unknown, prefix)


def _add_ends(fast: Tokenizer, file: GGUF, tokens: Sequence[str], begins: bool) -> None:
    """Add BOS before and EOS behind a text, where the file or llama.cpp's rule for its kind adds them."""
    ends: list[int | None] = []
    for key, usual in (("bos", begins), ("eos", False)):
        index = file.field(f"tokenizer.ggml.{key}_token_id")
        added = bool(_or(file.field(f"tokenizer.ggml.add_{key}_token"), usual))
        ends.append(int(index) if added and index is not None and 0 <= index < len(tokens) else None)
    add_ends(fast, tokens, *ends)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
