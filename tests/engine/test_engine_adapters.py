"""Protects LoRA. Answers are those of transformers with the adapter merged into the weights, beside any other requests.
Cached pages of one adapter are never another's. A folder that cannot be used is refused with the reason."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine.files import FAMILIES, random_model
from support.engine.reference import KERNELS, answers, ask, assert_all_greedy, engine, serve, tiny
from transformers import LlamaForCausalLM

from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.cpu.engine import Engine

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROMPTS = [[3 + (7 * place + 31 * one) % 290 for place in range(20 + 9 * one)] for one in range(6)]


def adapter(
    folder: Path,
    model: LlamaForCausalLM,
    seed: int = 1,
    modules: Sequence[str] = ALL,
    layers: Sequence[int] = (0, 1),
    rank: int = 4,
    **settings: Any,
) -> LlamaForCausalLM:
    """A random adapter as PEFT saves it, and the model with it merged: W + scale B A."""
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 16,
        "target_modules": list(modules),
        "bias": "none",
        **settings,
    }
    scale = settings["lora_alpha"] / (rank**0.5 if settings.get("use_rslora") else rank)
    merged, generator, tensors = copy.deepcopy(model), torch.Generator().manual_seed(seed), {}
    for layer in layers:
        for name, linear in merged.model.layers[layer].named_modules():
            if name.rpartition(".")[2] in modules:
                rows, columns = linear.weight.shape
                down, up = torch.randn(rank, columns, generator=generator), torch.randn(rows, rank, generator=generator)
                prefix = f"base_model.model.model.layers.{layer}.{name}"
                tensors[f"{prefix}.lora_A.weight"], tensors[f"{prefix}.lora_B.weight"] = down * 0.3, up * 0.3
                linear.weight.data += scale * (up * 0.3) @ (down * 0.3)
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return merged


def assert_answers(served: Engine, reference: LlamaForCausalLM, name: str | None) -> None:
    generated = answers(served, PROMPTS, 8, [name] * len(PROMPTS))
    assert_all_greedy(reference, list(zip(PROMPTS, generated, strict=True)))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_rslora": True, "rank": 9},
        {"modules": ("k_proj", "up_proj"), "layers": (1,)},
        {"modules": ("v_proj",), "rank": 1},
        {"modules": ("o_proj", "down_proj"), "lora_alpha": 7, "init_lora_weights": True, "lora_dropout": 0.1},
    ],
    ids=lambda changes: ",".join(changes) or "all",
)
def test_an_adapter_is_merged_weights(changes: dict[str, Any], kernels: str, tmp_path: Path) -> None:
    uri, model = tiny(tmp_path / "model", tie_word_embeddings=False, attention_bias=True)
    merged = adapter(tmp_path / "adapter", model, **changes)
    served = engine(uri, kernels=kernels, max_num_batched_tokens=64)
    plain = answers(served, PROMPTS, 8)
    served.load_adapter("a", str(tmp_path / "adapter"))
    assert answers(served, PROMPTS, 8, ["a"] * 6) != plain, "the adapter makes no difference"
    assert_answers(served, merged, "a")
    assert_answers(served, model, None)


@pytest.mark.parametrize(
    ("family", "modules"),
    [
        ("glm4", ("q_proj", "k_proj", "o_proj", "down_proj")),
        ("gemma2", ALL),
        ("olmo2", ALL),
        ("granite", ALL),
        ("gpt_oss", ALL[:4]),
    ],
)
def test_adapters_of_other_families_are_merged_weights(family: str, modules: tuple[str, ...], tmp_path: Path) -> None:
    """Their heads are rotated in another order, or what a layer adds is normalised or scaled."""
    model = random_model(FAMILIES[family])
    model.save_pretrained(tmp_path)
    merged = adapter(tmp_path / "one", model, modules=modules)
    served = engine(f"file://{tmp_path}", adapters=(("one", str(tmp_path / "one")),))
    prompts = [[token % 93 for token in prompt] for prompt in PROMPTS]
    generated = answers(served, prompts, 6, ["one"] * len(prompts))
    assert_all_greedy(merged, list(zip(prompts, generated, strict=True)))


def test_adapters_of_experts_are_refused(tmp_path: Path) -> None:
    model = random_model(FAMILIES["qwen2_moe"])
    model.save_pretrained(tmp_path)
    adapter(tmp_path / "one", model, modules=("q_proj",))
    path = tmp_path / "one/adapter_model.safetensors"
    save_file({name.replace("self_attn.q_proj", "mlp.gate_proj"): one for name, one in load_file(path).items()}, path)
    with pytest.raises(ModelError, match="layer 0, gate_proj: adapters of experts are not supported"):
        engine(f"file://{tmp_path}", adapters=(("one", str(tmp_path / "one")),))


def test_a_batch_of_several_adapters_and_none_shares_no_pages_between_them(tmp_path: Path) -> None:
    uri, model = tiny(tmp_path / "model")
    references = {
        "one": adapter(tmp_path / "one", model, 1),
        "two": adapter(tmp_path / "two", model, 2, rank=8),
        "three": adapter(tmp_path / "three", model, 3, modules=("q_proj", "v_proj"), rank=2),
        None: model,
    }
    paths = tuple((name, str(tmp_path / name)) for name in references if name)
    served = engine(uri, adapters=paths, max_num_batched_tokens=96, max_chunk_tokens=20)
    asked = [(prompt, name) for prompt in PROMPTS for name in references]
    for _ in range(2):  # the second time each from its own cached pages
        generated = answers(served, [prompt for prompt, _ in asked], 8, [name for _, name in asked])
        for name, reference in references.items():
            assert_all_greedy(
                reference, [(asked[i][0], generated[i]) for i in range(len(asked)) if asked[i][1] == name]
            )
        assert served.stats().preemptions == 0
    pages = sum((len(prompt) - 1) // 16 for prompt, _ in asked)
    assert served.stats().prefix_hits == 16 * pages, "the second time every whole page was there, the first time none"


def test_a_replaced_adapter_takes_nothing_from_its_predecessor(tmp_path: Path) -> None:
    uri, model = tiny(tmp_path / "model")
    first, second = adapter(tmp_path / "first", model, 1), adapter(tmp_path / "second", model, 2)
    served = engine(uri, adapters=(("a", str(tmp_path / "first")),))
    assert_answers(served, first, "a")
    before = served.stats().prefix_hits
    served.load_adapter("a", str(tmp_path / "second"))
    assert_answers(served, second, "a")
    assert served.stats().prefix_hits == before
    served.unload_adapter("a")
    served.load_adapter("a", str(tmp_path / "first"))
    assert_answers(served, first, "a")
    assert served.stats().prefix_hits == before


def test_requests_that_run_keep_the_adapter_they_began_with(tmp_path: Path) -> None:
    uri, model = tiny(tmp_path / "model")
    first, second = adapter(tmp_path / "first", model, 1), adapter(tmp_path / "second", model, 2)
    served = engine(uri, adapters=(("a", str(tmp_path / "first")),), num_pages=12, max_model_len=128)

    def between(step: int) -> None:
        if step == 3:
            served.load_adapter("a", str(tmp_path / "second"))
            for index, prompt in enumerate(PROMPTS):
                served.add(ask(f"later {index}", prompt, 8, adapter="a"))

    served_answers = serve(
        served, [ask(str(index), prompt, 12, adapter="a") for index, prompt in enumerate(PROMPTS)], between
    )
    assert_all_greedy(first, [(prompt, served_answers[str(index), 0].tokens) for index, prompt in enumerate(PROMPTS)])
    assert_all_greedy(
        second, [(prompt, served_answers[f"later {index}", 0].tokens) for index, prompt in enumerate(PROMPTS)]
    )
    served.unload_adapter("a")
    with pytest.raises(ValueError, match="no adapter 'a'"):
        served.add(ask("x", [5], 1, adapter="a"))


def test_adapters_are_counted_named_and_not_taken_from_a_request(tmp_path: Path) -> None:
    uri, model = tiny(tmp_path / "model")
    adapter(tmp_path / "a", model)
    served = engine(uri, max_adapters=2)
    served.load_adapter("one", str(tmp_path / "a"))
    served.load_adapter("two", str(tmp_path / "a"))
    served.load_adapter("two", str(tmp_path / "a"))
    with pytest.raises(ValueError, match="2 adapters are loaded already"):
        served.load_adapter("three", str(tmp_path / "a"))
    with pytest.raises(ValueError, match="there is no adapter 'three'"):
        served.add(ask("a", [5], 1, adapter="three"))
    with pytest.raises(ValueError, match="there is no adapter 'three'"):
        served.unload_adapter("three")
    served.add(ask("a", [5], 3, adapter="one"))
    served.step(0.0)
    for name in ("b", "c"):
        served.add(ask(name, [6], 3, adapter="two"))
    assert (served.stats().running_adapters, served.stats().waiting_adapters) == (("one",), ("two",))
    served.abort("b")
    served.abort("c")
    with pytest.raises(ValueError, match="in use"):
        served.unload_adapter("one")
    served.unload_adapter("two")
    served.abort("a")
    served.unload_adapter("one")


def settings(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        weights = load_file(folder / "adapter_model.safetensors")
        change(weights)
        save_file(weights, folder / "adapter_model.safetensors")

    return changed


LAYER = "base_model.model.model.layers."
Q = f"{LAYER}0.self_attn.q_proj.lora_"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json cannot be used: FileNotFound"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json cannot be used"),
        (lambda folder: (folder / "adapter_config.json").write_text("[1]"), "adapter_config.json cannot be used"),
        (lambda folder: (folder / "adapter_config.json").write_bytes(b"\xff\xfe"), "adapter_config.json cannot be used"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}'), "KeyError..r"),
        (settings(r="many"), "adapter_config.json cannot be used"),
        (settings(r=float("inf")), "adapter_config.json cannot be used: OverflowError"),
        (lambda folder: (folder / "adapter_config.json").write_text("[" * 100_000), "adapter_config.json cannot be used: Recursion"),
        (settings(r=0), "r must be 1 to 512, not 0"),
        (settings(r=-4), "r must be 1 to 512, not -4"),
        (settings(r=8), r"layer 0, down_proj: lora_A must be \[8, 160\] and lora_B \[96, 8\]"),
        (settings(lora_alpha=float("nan")), "lora_alpha must be a number"),
        (settings(peft_type="IA3"), "peft_type 'IA3' is not supported"),
        (settings(bias="all"), "bias 'all' is not supported"),
        (settings(use_dora=True), "use_dora True is not supported"),
        (settings(modules_to_save=["lm_head"]), r"modules_to_save \['lm_head'\] is not supported"),
        (settings(rank_pattern={"q_proj": 2}), "rank_pattern"),
        (settings(fan_in_fan_out=True), "fan_in_fan_out"),
        (settings(alora_invocation_tokens=[5, 6]), r"alora_invocation_tokens \[5, 6\] is not supported"),
        (settings(init_lora_weights="pissa_niter_4"), "init_lora_weights 'pissa_niter_4' is not supported"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors cannot be read"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"PK\3\4 pickled"), "cannot be read"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b""), "cannot be read"),
        (tensors(lambda weights: weights.clear()), "holds no LoRA weights"),
        (tensors(lambda weights: weights.pop(f"{Q}A.weight")), r"layer 0, q_proj: lora_A must be \[4, 96\]"),
        (tensors(lambda weights: weights.pop(f"{Q}B.weight")), r"layer 0, q_proj: .* lora_B \[96, 4\]"),
        (tensors(lambda weights: weights.update({f"{Q}B.weight": torch.zeros(32, 4)})), "layer 0, q_proj"),
        (tensors(lambda weights: weights.update({f"{Q}A.weight": torch.zeros(96, 4)})), "layer 0, q_proj"),
        (tensors(lambda weights: weights.update({f"{Q}A.weight": torch.full((4, 96), float("nan"))})), "not finite"),
        (tensors(lambda weights: weights.update({f"{LAYER}2.mlp.up_proj.lora_A.weight": torch.zeros(4, 96)})), "layers.2.*not a"),
        (tensors(lambda weights: weights.update({f"{LAYER}0.mlp.router.lora_A.weight": torch.zeros(4, 96)})), "router.*not a"),
        (tensors(lambda weights: weights.update({f"{LAYER}0.mlp.q_proj.lora_A.weight": torch.zeros(4, 96)})), "mlp.q_proj.*not a"),
        (tensors(lambda weights: weights.update({"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 96)})), "lm_head.*not a"),
        (tensors(lambda weights: weights.update({f"{Q}magnitude_vector": torch.zeros(96)})), "magnitude_vector.*not a"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_used_says_why(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    uri, model = tiny(tmp_path / "model")
    adapter(tmp_path / "a", model)
    damage(tmp_path / "a")
    served = engine(uri)
    with pytest.raises(ValueError, match=message):
        served.load_adapter("a", str(tmp_path / "a"))
    assert answers(served, PROMPTS[:1], 2)[0]


def test_an_adapter_that_cannot_be_used_at_start_names_its_option(tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path)
    with pytest.raises(ModelError, match=r"spec\.engine\.args: --lora-adapter a: .*cannot be used"):
        engine(uri, adapters=(("a", str(tmp_path / "nowhere")),))
