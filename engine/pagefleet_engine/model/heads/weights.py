"""The tensors of an EAGLE-3 head, by one set of names, and the tokens that it can propose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from pagefleet_engine.model.checkpoint import shards
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.weights import ElementBytes, Weights
from pagefleet_engine.model.heads import config
from pagefleet_engine.model.heads.config import HeadConfig

EMBEDDING = "embed_tokens.weight"
# Tensors of a training run that drafting does not need, and the mapping of tokens, which is read apart.
UNUSED = ("t2d", "d2t", "verifier_norm.weight", "verifier_lm_head.weight")


@dataclass(frozen=True)
class HeadFiles:
    """A head whose weights are not read yet. tokens [draft_vocab_size] int64: the served model's numbers of its tokens.

    The layer's tensors have the prefix `layer.`; `embeds`: whether there is an embedding of its own.
    """

    config: HeadConfig
    weights: Weights
    tokens: torch.Tensor

    @property
    def embeds(self) -> bool:
        return EMBEDDING in self.weights

    @property
    def weight_bytes(self) -> int:
        """Return the most bytes that the prepared weights take, in addition to the served model's."""
        shape, head = self.config.shape, self.config
        own = shape.vocab_size if self.embeds else 0
        rows = config.TAPS * head.target_hidden_size + 2 * (shape.q_size + 2 * shape.kv_size) + shape.q_size
        rows += shape.mlp_rows(0) + head.draft_vocab_size + own
        return int(rows * shape.hidden_size * self.weights.element_bytes.layers)


def load(folder: Path) -> HeadFiles:
    """Raises ModelError for a head that is not supported, naming the entry or the tensor."""
    head = config.from_json(folder)
    files = {_name(name): reader for name, reader in shards.readers(folder).items()}
    kept = {name: reader for name, reader in files.items() if name not in UNUSED}
    element_bytes = max((reader.bytes for name, reader in kept.items() if name.endswith("proj.weight")), default=4)
    return HeadFiles(
        head,
        Weights(kept, folder.name, element_bytes=ElementBytes(element_bytes)),
        _tokens(head, files, folder.name),
    )


def _name(stored: str) -> str:
    name = stored.removeprefix("model.")
    for prefix in ("midlayer.", "layers.0."):  # SafeAILab's, and that of speculators
        if name.startswith(prefix):
            return f"layer.{name.removeprefix(prefix)}"
    return name


def _tokens(head: HeadConfig, files: Mapping[str, shards.Reader], where: str) -> torch.Tensor:
    """Read `d2t` [draft_vocab_size], what is to be added to a number of the head's vocabulary. Raises ModelError."""
    own, most = torch.arange(head.draft_vocab_size), head.shape.vocab_size
    if "d2t" not in files:
        if head.draft_vocab_size != most:
            raise ModelError(
                SOURCE,
                f"{where} lacks the tensor d2t: draft_vocab_size {head.draft_vocab_size} is not vocab_size {most}",
            )
        return own
    offsets = files["d2t"]()
    if offsets.shape != own.shape or offsets.is_floating_point():
        raise ModelError(
            SOURCE,
            f"{where}: tensor d2t is {tuple(offsets.shape)} of {offsets.dtype}, not {head.draft_vocab_size} integers",
        )
    tokens = own + offsets.long()
    if int(tokens.min()) < 0 or int(tokens.max()) >= most or len(set(tokens.tolist())) != len(tokens):
        raise ModelError(SOURCE, f"{where}: tensor d2t must lead to different tokens from 0 to {most - 1}")
    return tokens
