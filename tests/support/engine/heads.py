"""EAGLE-3 heads in the published formats: random ones, one that knows a model's next token, and a reference in plain torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.engine.drafts import prompts
from support.engine.reference import ask, tiny
from transformers import LlamaForCausalLM

from pagefleet_engine.core.requests import EngineRequest
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.head_drafts import HeadDrafts

LAYERS = (1, 2, 4)  # those whose inputs the random heads read
Tensors = dict[str, torch.Tensor]


@dataclass
class Head:
    """A head as it is on the disk, by SafeAILab's names of tensors."""

    config: dict[str, Any]
    tensors: Tensors
    before_residual: bool = False

    def save(self, folder: Path, form: str = "safeailab") -> str:
        """Write it in one of the formats and return its URI."""
        folder.mkdir(parents=True)
        config, tensors = self.config, self.tensors
        if form == "speculators":
            own = ("architectures", "draft_vocab_size", "target_hidden_size", "eagle_config")
            config = {
                "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
                "draft_vocab_size": config["draft_vocab_size"], "norm_before_residual": self.before_residual,
                "target_hidden_size": config.get("target_hidden_size"),
                "eagle_aux_hidden_state_layer_ids": [one + 1 for one in self.layer_outputs],
                "transformer_layer_config": {name: value for name, value in config.items() if name not in own},
            }  # fmt: skip
            tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
        (folder / "config.json").write_text(json.dumps(config))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
        return f"file://{folder}"

    @property
    def layer_outputs(self) -> list[int]:
        ids: list[int] = self.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        return ids


def served(folder: Path, **changes: Any) -> tuple[str, LlamaForCausalLM]:
    """Save a random model of five layers."""
    return tiny(folder, **{"num_hidden_layers": 5, "initializer_range": 0.05, **changes})


def random_head(model: LlamaForCausalLM, *, tokens: int = 120, own: bool = False, seed: int = 5) -> Head:
    """A random head that can propose `tokens` tokens of the model's; `own`: with an embedding of its own."""
    shape, hidden, inner, kv = model.config, 64 if own else model.config.hidden_size, 96, 2 * 16
    torch.manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns) * columns**-0.5

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size)

    chosen = torch.randperm(shape.vocab_size)[:tokens].sort().values
    t2d = torch.zeros(shape.vocab_size, dtype=torch.bool)
    t2d[chosen] = True
    tensors: Tensors = {
        "fc.weight": matrix(hidden, 3 * shape.hidden_size),
        "midlayer.hidden_norm.weight": norm(hidden),
        "midlayer.input_layernorm.weight": norm(hidden),
        "midlayer.post_attention_layernorm.weight": norm(hidden),
        "midlayer.self_attn.q_proj.weight": matrix(64, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": matrix(kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": matrix(kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": matrix(hidden, 64),
        "midlayer.mlp.gate_proj.weight": matrix(inner, hidden),
        "midlayer.mlp.up_proj.weight": matrix(inner, hidden),
        "midlayer.mlp.down_proj.weight": matrix(hidden, inner),
        "norm.weight": norm(hidden),
        "lm_head.weight": matrix(tokens, hidden) * 3,
        "d2t": chosen - torch.arange(tokens),
        "t2d": t2d,
    }
    if own:
        tensors["embed_tokens.weight"] = torch.randn(shape.vocab_size, hidden)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "num_hidden_layers": 1, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 5000.0,
        "vocab_size": shape.vocab_size, "draft_vocab_size": tokens, "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [one - 1 for one in LAYERS], "use_aux_hidden_state": True},
    }  # fmt: skip
    if own:
        config["target_hidden_size"] = shape.hidden_size
    return Head(config, tensors)


Proposals = list[tuple[list[int], tuple[int, ...], torch.Tensor]]


def spied(monkeypatch: pytest.MonkeyPatch, kind: type[Any]) -> Proposals:
    """The list takes each row that a head of this class drafts: the text that is known, the draft tokens before the row, and the logits."""
    seen: Proposals = []
    places: list[torch.Tensor] = []
    computed, chain = kind.logits, HeadDrafts._chain

    def logits(self: Any, outputs: torch.Tensor) -> torch.Tensor:
        places.append(computed(self, outputs).clone())
        return places[-1]

    def chained(self: HeadDrafts, drafting: Sequence[Work]) -> None:
        places.clear()
        chain(self, drafting)
        for place, rows in enumerate(places):
            works = [work for work in drafting if work.drafts > place]
            for work, row in zip(works, rows, strict=True):
                seen.append((list(work.sequence.tokens), work.sequence.draft[:place], row))

    monkeypatch.setattr(kind, "logits", logits)
    monkeypatch.setattr(HeadDrafts, "_chain", chained)
    return seen


def assert_right(seen: Proposals, model: LlamaForCausalLM, head: Head) -> None:
    """Compare logits with the reference's."""
    tokens = head.tensors["d2t"] + torch.arange(len(head.tensors["d2t"]))
    for known, before, logits in seen:
        expected = reference_logits(model, head, known, before)[-1]
        torch.testing.assert_close(logits[tokens], expected, atol=2e-4, rtol=1e-4)
        assert int(logits.isfinite().sum()) == len(tokens)


def parting() -> list[EngineRequest]:
    """Return requests whose texts part within a page: those that part behind one may read one another's last entry of it."""
    return [
        ask(str(index), prompt, 20, n=1 + index % 2, temperature=0.8, seed=index)
        for index, prompt in enumerate(prompts(10)) if len(prompt) % 16
    ]  # fmt: skip


CYCLE = 40  # tokens of the model that `knowing` makes


def knowing(folder: Path) -> tuple[str, Head]:
    """Save a model whose next token depends on the last one only, and return a head that knows it.

    The model's layers add nothing. Its embedding of a token has a one at the token's place and at the last place; its
    output matrix moves the token's place to that of the next token. The head's attention finds its own position, by keys
    and queries of the last place that the rotation alone tells apart, and takes the token from there.
    """
    hidden = 64
    uri, model = tiny(
        folder, vocab_size=CYCLE, hidden_size=hidden, num_attention_heads=4, num_key_value_heads=4,
        num_hidden_layers=5, tie_word_embeddings=False,
    )  # fmt: skip
    embedding = torch.zeros(CYCLE, hidden)
    embedding[torch.arange(CYCLE), torch.arange(CYCLE)] = 1
    embedding[:, -1] = 1
    following = torch.arange(CYCLE).roll(-7)
    output = torch.zeros(CYCLE, hidden)
    output[following, torch.arange(CYCLE)] = 5
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(output)
        model.model.norm.weight.fill_(1)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)
    head = random_head(model, tokens=CYCLE)
    head.config["num_key_value_heads"] = 4
    tensors = head.tensors
    own = torch.zeros(64, 2 * hidden)
    own[torch.arange(64) % 16 < 3, hidden - 1] = 3.0  # the three fastest pairs of each head
    taken = torch.zeros(64, 2 * hidden)
    taken[torch.arange(64), torch.arange(64)] = 1
    taken[torch.arange(64), torch.arange(64) + hidden] = -1  # the state has the token before, which the residual adds
    tensors |= {
        "fc.weight": torch.cat((torch.eye(hidden), torch.zeros(hidden, 2 * hidden)), dim=1),
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "midlayer.input_layernorm.weight": torch.ones(hidden),
        "midlayer.self_attn.q_proj.weight": own,
        "midlayer.self_attn.k_proj.weight": own.clone(),
        "midlayer.self_attn.v_proj.weight": taken,
        "midlayer.self_attn.o_proj.weight": 100 * torch.eye(64),
        "midlayer.mlp.down_proj.weight": torch.zeros(hidden, 96),
        "lm_head.weight": output[: head.config["draft_vocab_size"]].clone(),
        "norm.weight": torch.ones(hidden),
    }
    return uri, head


def in_cycle() -> list[EngineRequest]:
    """Return requests for the model of `knowing`."""
    return [
        ask(str(index), [token % CYCLE for token in prompt], 30, n=1 + index % 3)
        for index, prompt in enumerate(prompts(12))
    ]


@torch.inference_mode()
def reference_logits(model: LlamaForCausalLM, head: Head, tokens: Sequence[int], drafts: Sequence[int]) -> torch.Tensor:
    """The head's logits [drafts + 1, draft_vocab_size] after `tokens` and after each of `drafts`, written out in full."""
    states = model(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states
    read = torch.cat([states[one + 1][0] for one in head.layer_outputs], dim=-1)
    inputs = read @ head.tensors["fc.weight"].T
    every, rows = [*tokens, *drafts], []
    for place in range(len(drafts) + 1):
        outputs = _layer(model, head, inputs, torch.tensor(every[1 : len(tokens) + place]))
        last = outputs[-1:]
        rows.append(_norm(head, last, "norm") @ head.tensors["lm_head.weight"].T)
        inputs = torch.cat((inputs, last))
    return torch.cat(rows)


def _layer(model: LlamaForCausalLM, head: Head, inputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    config, get = head.config, head.tensors
    count, size, heads, kv = (
        len(tokens),
        config["head_dim"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
    )
    embedding = get.get("embed_tokens.weight", model.model.embed_tokens.weight)
    normed = _norm(head, inputs, "midlayer.hidden_norm")
    joined = torch.cat((_norm(head, embedding[tokens], "midlayer.input_layernorm"), normed), dim=-1)
    q, k, v = (
        (joined @ get[f"midlayer.self_attn.{name}_proj.weight"].T).view(count, -1, size).transpose(0, 1)
        for name in "qkv"
    )
    angles = torch.outer(torch.arange(count), config["rope_theta"] ** (-torch.arange(0, size, 2) / size))
    turned = [torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
              for a, b in (q.chunk(2, -1), k.chunk(2, -1))]  # fmt: skip
    keys, values = turned[1].repeat_interleave(heads // kv, 0), v.repeat_interleave(heads // kv, 0)
    scores = turned[0] @ keys.transpose(1, 2) * size**-0.5
    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), float("-inf"))
    attended = (scores.softmax(-1) @ values).transpose(0, 1).reshape(count, -1)
    x = (normed if head.before_residual else inputs) + attended @ get["midlayer.self_attn.o_proj.weight"].T
    y = _norm(head, x, "midlayer.post_attention_layernorm")
    gate, up = (y @ get[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return x + (torch.nn.functional.silu(gate) * up) @ get["midlayer.mlp.down_proj.weight"].T


def _norm(head: Head, x: torch.Tensor, name: str) -> torch.Tensor:
    scale = (x.pow(2).mean(-1, keepdim=True) + head.config["rms_norm_eps"]).rsqrt()
    return x * scale * head.tensors[f"{name}.weight"]
