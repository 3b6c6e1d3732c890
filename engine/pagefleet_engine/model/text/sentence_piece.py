"""SentencePiece's BPE as a tokenizer: of a list of pieces with scores, or of a file tokenizer.model. No torch.

The file is a protobuf message: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

NORMAL_TOKEN, CONTROL_TOKEN, USER_TOKEN, BYTE_TOKEN = 1, 3, 4, 6  # the numbers of pieces' types, GGUF's as well
SPACE = "▁"
BPE = 2  # of trainer_spec.model_type
# Numbers of the message's fields: of the whole, of a piece, of the trainer's and of the normaliser's settings.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
PIECE, SCORE, TYPE = 1, 2, 3
MODEL_TYPE, UNKNOWN_ID, BOS_ID, EOS_ID = 3, 40, 41, 42
ADD_PREFIX, REMOVE_SPACES = 3, 4
Value = int | bytes


@dataclass(frozen=True)
class Pieces:
    """The contents of a file; `prefix`: a space is put before each text."""

    tokens: list[str]
    scores: list[float]
    types: list[int]
    unknown: int
    bos: int
    eos: int
    prefix: bool


def build(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], unknown: int, prefix: bool
) -> Tokenizer:
    """Of all neighbours that form a token, those of the highest score merge first. Text that forms no token falls back to its
    UTF-8 bytes.
    """
    fast = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges_of(tokens, scores, types),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=BYTE_TOKEN in types,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    fast.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return fast


def add_named(fast: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Make control tokens and those of the user whole tokens, which no text around them changes."""
    fast.add_special_tokens(
        [AddedToken(tokens[i], special=True, normalized=False) for i, t in enumerate(types) if t == CONTROL_TOKEN]
    )
    fast.add_tokens([AddedToken(tokens[i], normalized=False) for i, t in enumerate(types) if t == USER_TOKEN])


def add_ends(fast: Tokenizer, tokens: Sequence[str], bos: int | None, eos: int | None) -> None:
    """Put these tokens before and behind each text."""
    special = [(tokens[index], index) for index in (bos, eos) if index is not None]
    if special:
        single = [*([tokens[bos]] if bos is not None else []), "$A", *([tokens[eos]] if eos is not None else [])]
        fast.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)


def merges_of(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a normal token, the best score first: SentencePiece's order as a merge list.

    Pairs of one token stand in the order of their own ids, as in transformers' conversion.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int, int, tuple[str, str]]] = []
    for token, index in ids.items():
        if types[index] != NORMAL_TOKEN:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[index], index, ids[left], ids[right], (left, right)))
    ranked.sort()
    return [pair for *_, pair in ranked]


def read(path: Path) -> Pieces:
    """Read tokenizer.model. Raises ValueError for another kind of model, or a damaged file."""
    tokens, scores, types = [], [], []
    settings: dict[tuple[int, int], Value] = {}
    for field, value in _fields(path.read_bytes()):
        if field == PIECES and isinstance(value, bytes):
            piece = dict(_fields(value))
            tokens.append(bytes(piece.get(PIECE, b"")).decode())
            scores.append(struct.unpack("<f", bytes(piece.get(SCORE, bytes(4))))[0])
            types.append(int(piece.get(TYPE, NORMAL_TOKEN)))
        elif field in (TRAINER, NORMALIZER) and isinstance(value, bytes):
            settings |= {(field, number): one for number, one in _fields(value)}

    def number(message: int, field: int, default: int) -> int:
        value = settings.get((message, field), default)
        return value - (1 << 64) if isinstance(value, int) and value >> 63 else int(value)

    if number(TRAINER, MODEL_TYPE, 1) != BPE:
        raise ValueError("tokenizer.model is not a BPE: only tokenizer.json is supported for it")
    if number(NORMALIZER, REMOVE_SPACES, 1):
        raise ValueError("tokenizer.model removes extra spaces: only tokenizer.json is supported for it")
    unknown, bos, eos = number(TRAINER, UNKNOWN_ID, 0), number(TRAINER, BOS_ID, 1), number(TRAINER, EOS_ID, 2)
    if not 0 <= unknown < len(tokens) or max(bos, eos) >= len(tokens):
        raise ValueError(
            f"tokenizer.model has {len(tokens)} tokens; the unknown one is {unknown}, the ends {bos}, {eos}"
        )
    return Pieces(tokens, scores, types, unknown, bos, eos, bool(number(NORMALIZER, ADD_PREFIX, 1)))


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The numbers and values of a message's fields: whole numbers, and the bytes of everything else."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(message, at)
            case 5:
                size = 4
            case other:
                raise ValueError(f"tokenizer.model is damaged: a field of kind {other}")
        if at + size > len(message):
            raise ValueError("tokenizer.model is cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("tokenizer.model is cut off")
        value |= (message[at] & 127) << shift
        shift += 7
        at += 1
        if message[at - 1] < 128:
            return value, at
