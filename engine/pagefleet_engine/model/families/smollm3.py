"""SmolLM3 (Bakouch et al., 2025): Llama, with layers whose queries and keys have no positions."""

from __future__ import annotations

from pagefleet_engine.model.families.family import Document, Family, Options, Sliding, layer_types

INTERVAL, THETA = 4, 2_000_000.0  # transformers' defaults for a config.json without the entries


def _rotary(document: Document, layers: int) -> tuple[bool, ...]:
    given, interval = document.get("no_rope_layers"), int(document.get("no_rope_layer_interval", INTERVAL))
    if given is not None:
        return tuple(bool(one) for one in given)  # 1 for a layer that has positions, whatever the entry's name says
    return tuple((index + 1) % interval != 0 for index in range(layers))


def _config(document: Document) -> Document:
    theta = {} if document.get("rope_parameters") else {"rope_theta": THETA}
    return {"tie_word_embeddings": True, **theta, **document}


def _options(document: Document) -> Options:
    return Options(rotary_layers=_rotary(document, int(document["num_hidden_layers"])))


def _sliding(document: Document, layers: int) -> Sliding:
    window = document.get("sliding_window") if document.get("use_sliding_window", False) else None
    default = [not rotated for rotated in _rotary(document, layers)]
    return layer_types({**document, "sliding_window": window}, layers, default)


FAMILY = Family("smollm3", config=_config, kv_heads=4, positions=32768, sliding=_sliding, options=_options)
