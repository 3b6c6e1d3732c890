"""gpt-oss (OpenAI, 2025): experts with biases and a clamped SwiGLU, attention sinks, and a window in every second layer."""

from __future__ import annotations

from collections.abc import Mapping

from pagefleet_engine.model.families.family import (
    Document,
    Experts,
    Family,
    NotSupported,
    Options,
    Piece,
    Sizes,
    Sliding,
    experts_count,
    layer_types,
    renamed,
)

EXPERTS, CHOSEN, HEAD_DIM, WINDOW, THETA = (
    128,
    4,
    64,
    128,
    150_000.0,
)  # transformers' defaults for a config.json without the entries
YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
COMPUTED = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}


def _config(document: Document) -> Document:
    rope = document.get("rope_parameters") or document.get("rope_scaling") or YARN
    theta = rope.get("rope_theta") or document.get("rope_theta") or THETA
    return {"attention_bias": True, **document, "rope_scaling": {**rope, "rope_theta": theta}}


def _options(document: Document) -> Options:
    for name, computed in COMPUTED.items():
        if document.get(name, computed) != computed:
            raise NotSupported(f"{name} {document[name]!r} is not supported; supported: {computed}")
    return Options(
        activation="clamped_swiglu", sinks=True,
        experts=Experts(
            count=experts_count(document, EXPERTS),
            chosen=int(document.get("num_experts_per_tok") or document.get("experts_per_token", CHOSEN)),
            inner=int(document["intermediate_size"]),
        ),
    )  # fmt: skip


def _sliding(document: Document, layers: int) -> Sliding:
    return layer_types({"sliding_window": WINDOW, **document}, layers, [index % 2 == 0 for index in range(layers)])


def _pieces(name: str, sizes: Sizes) -> Mapping[str, Piece]:
    """Gates and ups lie in turn; matrices as [experts, in, out]."""
    experts = sizes.options.experts
    prefix, _, last = name.partition(".mlp.experts.")
    module = last.removesuffix("_bias")
    if experts is None or module not in ("gate_up_proj", "down_proj"):
        return {}
    kind, matrix = ("weight", True) if last == module else ("bias", False)
    pieces: dict[str, Piece] = {}
    for index in range(experts.count):
        place = f"{prefix}.mlp.experts.{index}."
        if module == "down_proj":
            pieces[f"{place}down_proj.{kind}"] = Piece(expert=index, transposed=matrix)
        else:
            pieces[f"{place}gate_proj.{kind}"] = Piece(0, None, 2, expert=index, transposed=matrix)
            pieces[f"{place}up_proj.{kind}"] = Piece(1, None, 2, expert=index, transposed=matrix)
    return pieces


FAMILY = Family(
    "gpt_oss", config=_config, tensor=renamed({"mlp.router": "mlp.gate"}), head_dim=HEAD_DIM, kv_heads=8,
    norm_eps=1e-5, positions=131072, sliding=_sliding, options=_options, pieces=_pieces,
)  # fmt: skip
