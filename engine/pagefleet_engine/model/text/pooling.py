"""What a checkpoint says of itself as a model of embeddings or scores. No torch.

sentence-transformers' files: modules.json and 1_Pooling/config.json; and config.json's `classifier_from_token`, which vLLM
reads too: two tokens whose probabilities after a pair of texts are its score.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagefleet_engine.model.checkpoint.source import Format, ModelSource, read_json

MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_cls_token": "cls",
}
MODULES = {"Transformer", "Pooling", "Normalize"}


@dataclass(frozen=True)
class Purpose:
    """`embeds`: the checkpoint is made for embeddings, with a `pooling` of MODES. `no_yes`: the tokens that score a pair of texts.

    `unsupported`: why its embeddings cannot be computed here.
    """

    embeds: bool = False
    pooling: str = "mean"
    unsupported: str = ""
    no_yes: tuple[str, str] | None = None


def purpose(source: ModelSource) -> Purpose:
    """Raises ModelError."""
    if source.format is not Format.SAFETENSORS:
        return Purpose()
    folder = source.path
    tokens = _json(folder / "config.json").get("classifier_from_token")
    no_yes = (str(tokens[0]), str(tokens[1])) if isinstance(tokens, list) and len(tokens) == 2 else None
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return Purpose(no_yes=no_yes)
    modes = [name for name, on in _json(path).items() if name.startswith("pooling_mode_") and on is True]
    others = sorted(_modules(folder) - MODULES)
    unsupported = ""
    if others:
        unsupported = f"the checkpoint's module {others[0]} is not supported"
    elif len(modes) != 1 or modes[0] not in MODES:
        unsupported = f"the checkpoint's pooling ({', '.join(modes) or 'none'}) is not supported"
    pooling = "mean" if unsupported else MODES[modes[0]]
    return Purpose(True, pooling, unsupported, no_yes)


def _modules(folder: Path) -> set[str]:
    modules = read_json(folder / "modules.json")
    several = modules if isinstance(modules, list) else []
    return {str(module.get("type", "")).rpartition(".")[2] for module in several if isinstance(module, dict)}


def _json(path: Path) -> dict[str, Any]:
    document = read_json(path)
    return document if isinstance(document, dict) else {}
