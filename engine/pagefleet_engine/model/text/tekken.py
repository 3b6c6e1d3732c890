"""Mistral's tekken.json as a tokenizer: byte-level BPE by ranks, with the special tokens first. No torch."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from pagefleet_engine.model.text.byte_level import letters

BOS = "<s>"


def build(path: Path) -> Tokenizer:
    """Raises ValueError, KeyError or TypeError for a damaged file."""
    document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    config = document["config"]
    special = int(config["default_num_special_tokens"])
    names = [f"<SPECIAL_{index}>" for index in range(special)]
    for entry in document.get("special_tokens") or []:
        names[int(entry["rank"])] = str(entry["token_str"])
    texts = [letters(base64.b64decode(entry["token_bytes"])) for entry in document["vocab"]]
    texts = texts[: int(config["default_vocab_size"]) - special]
    ranks = {text: rank for rank, text in enumerate(texts)}
    merges = [
        (rank, ranks[left], ranks[right], (left, right))
        for text, rank in ranks.items()
        for cut in range(1, len(text))
        if (left := text[:cut]) in ranks and (right := text[cut:]) in ranks
    ]
    vocabulary = {name: index for index, name in enumerate(names)} | {
        text: special + rank for text, rank in ranks.items()
    }
    fast = Tokenizer(models.BPE(vocab=vocabulary, merges=[pair for *_, pair in sorted(merges)], ignore_merges=True))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(config["pattern"]), "isolated"), level])
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    if BOS in names:
        fast.post_processor = processors.TemplateProcessing(
            single=[BOS, "$A"], special_tokens=[(BOS, names.index(BOS))]
        )
    return fast
