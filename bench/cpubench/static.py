"""The way without a serving engine: transformers' generate over batches of 16, one batch after the other.

Says "ready" on its standard output, reads one line of JSON (prompts, output lengths, one temperature), answers with one line:
for every request the times of its tokens, in seconds from the start. A batch runs until its longest answer is whole; tokens past
a request's own length are not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList


class Clock(StoppingCriteria):  # type: ignore[misc]
    """Notes the time of every step; stops nothing, since the lengths do."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool)


def generate(model: Any, prompts: list[list[int]], outputs: list[int], temperature: float) -> list[list[float]]:
    """Times of the tokens of each request of one batch. Prompts are padded on the left. A temperature of 0 is greedy."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    clock = Clock()
    model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=max(outputs),
        **(
            {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            if temperature
            else {"do_sample": False}
        ),
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    return [clock.times[:output] for output in outputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    flags = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(flags.model, dtype=torch.float32, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None
    print("ready", flush=True)
    asked = json.loads(sys.stdin.readline())
    start, times = time.perf_counter(), []
    with torch.inference_mode():
        for first in range(0, len(asked["prompts"]), flags.batch):
            chosen = slice(first, first + flags.batch)
            times += generate(model, asked["prompts"][chosen], asked["outputs"][chosen], asked["temperature"])
    print(json.dumps([[moment - start for moment in request] for request in times]), flush=True)


if __name__ == "__main__":
    main()
