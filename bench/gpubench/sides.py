"""One process's work: our engine or transformers' continuous batching over one checkpoint. Prints one line of JSON a
result, and `ready` before the first."""

from __future__ import annotations

import json
import time
from typing import Any

import torch

from gpubench.workload import Prompt, alike, mixed


def emit(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def loads(plan: dict[str, Any], vocabulary: int) -> dict[str, list[Prompt]]:
    """The plan's workloads by name."""
    workloads = {
        f"batch {batch}": alike(batch, plan["context"], plan["requested"], vocabulary)
        for batch in plan.get("batches", ())
    }
    if "mixed" in plan:
        workloads["mixed"] = mixed(*plan["mixed"], vocabulary)
    return workloads


def ours(plan: dict[str, Any]) -> None:
    from pagefleet_engine.core.requests import EngineConfig, Speculation
    from pagefleet_engine.runner.device.engine import DeviceEngine

    device = torch.device(plan["device"])
    if device.type == "cpu":
        torch.set_num_threads(1)
    drafts = Speculation(plan["drafts"]) if "drafts" in plan else None
    config = EngineConfig(plan["model"], speculation=drafts, **plan["settings"])
    engine = DeviceEngine(config, device)
    emit({"ready": engine.description, "pages": engine.stats().pages_total})
    for name, asked in loads(plan, engine.vocab_size).items():
        _serve(engine, asked[: max(1, len(asked) // 8)], f"{name} warm-up")  # compiles what this load needs
        emit({"load": name, **_serve(engine, asked, name)})
    engine.close()


def _serve(engine: Any, asked: list[Prompt], name: str) -> dict[str, Any]:
    """Tokens a second of the whole, and while every request is being answered (no prompt left, none ended)."""
    from pagefleet_engine.core.requests import EngineRequest, SamplingParams

    begun = time.perf_counter()
    for index, one in enumerate(asked):
        sampling = SamplingParams(one.requested, ignore_eos=True)
        engine.add(EngineRequest(f"{name} {index}", tuple(one.tokens), sampling, 0.0))
    answering: set[str] = set()
    tokens = steady = ended = steps = 0
    steady_from = steady_to = 0.0
    while engine.has_work():
        outputs = engine.step(0.0)
        now = time.perf_counter()
        brought = sum(len(output.token_ids) for output in outputs)
        tokens += brought
        if len(answering) == len(asked) and not ended:
            steady, steady_to, steps = steady + brought, now, steps + 1
        answering.update(output.request_id for output in outputs)
        if len(answering) == len(asked) and not steady_from:
            steady_from = now
        ended += sum(output.finish_reason is not None for output in outputs)
    seconds = time.perf_counter() - begun
    if tokens != sum(one.requested for one in asked):
        raise RuntimeError(f"{name}: {tokens} tokens came, {sum(one.requested for one in asked)} were requested")
    span = steady_to - steady_from
    return {"tokens": tokens, "seconds": seconds, "whole": tokens / seconds, "steps": steps,
            "decode": steady / span if span > 0 else 0.0}  # fmt: skip


def transformers(plan: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM, GenerationConfig

    folder = plan["model"].removeprefix("file://")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(plan["device"]).eval()
    emit({"ready": {"attention": model.config._attn_implementation}})
    generation = GenerationConfig(do_sample=False, max_new_tokens=plan.get("requested", 64), eos_token_id=-1)
    for name, asked in loads(plan, model.config.vocab_size).items():
        emit({"load": name, **_continuous(model, generation, asked)})


def _continuous(model: Any, generation: Any, asked: list[Prompt]) -> dict[str, Any]:
    with model.continuous_batching_context_manager(generation_config=generation, block=True, timeout=5) as manager:
        begun = time.perf_counter()
        for one in asked:
            manager.add_request(one.tokens, max_new_tokens=one.requested)
        tokens, left = 0, len(asked)
        while left:
            result = manager.get_result(timeout=1)
            if time.perf_counter() - begun > TIMEOUT_SECONDS:
                raise RuntimeError(f"transformers has not answered {left} of {len(asked)} requests")
            if result is None or not result.is_finished():
                continue
            if result.error:
                raise RuntimeError(f"transformers: {result.error}")
            tokens, left = tokens + len(result.generated_tokens), left - 1
        seconds = time.perf_counter() - begun
    return {"tokens": tokens, "seconds": seconds, "whole": tokens / seconds, "decode": 0.0}


TIMEOUT_SECONDS = 120.0
SIDES = {"pagefleet": ours, "transformers": transformers}
