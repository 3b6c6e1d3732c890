"""The scheduler without a model: steps in which every sequence samples one token, for tests of the scheduled work."""

from __future__ import annotations

from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.requests import Batching, EngineRequest, SamplingParams, TokenOutput
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.work import Work

EOS = 99
LIMITS = Limits(
    page_size=4, pages=64, max_num_seqs=8, max_num_batched_tokens=16, max_model_len=128, vocab_size=1000,
    batching=Batching.CONTINUOUS, eos_token_ids=frozenset({EOS}),
)  # fmt: skip


def request(name: str, prompt: int, most: int = 4, *, first: int = 0, priority: int = 0) -> EngineRequest:
    tokens = tuple((first or 100 * (ord(name[0]) - 96)) % 900 + index for index in range(prompt))
    return EngineRequest(name, tokens, SamplingParams(most), arrival=1.0, priority=priority)


def results(work_items: list[Work], token: int) -> list[tuple[tuple[int, ...], ...]]:
    """Return results as if the model chose `token` everywhere: only draft tokens equal to it are accepted."""
    results_of_items: list[tuple[tuple[int, ...], ...]] = []
    for work in work_items:
        draft = work.sequence.draft[: work.drafts]
        right = next((index for index, drafted in enumerate(draft) if drafted != token), len(draft))
        results_of_items.append(tuple((token,) * (right + 1) for _ in range(work.answers)) if work.samples else ())
    return results_of_items


def step(scheduler: Scheduler, token: int = 5, now: float = 2.0) -> tuple[dict[str, int], list[TokenOutput]]:
    """Run one step in which every sequence samples `token`. Return {request: tokens computed}, and the outputs."""
    work_items = scheduler.schedule(now)
    scheduler.check()
    counts = {work.sequence.request_id: work.count for work in work_items}
    outputs = scheduler.commit(work_items, results(work_items, token))
    scheduler.check()
    return counts, outputs


def run(scheduler: Scheduler, steps: int = 500) -> list[TokenOutput]:
    outputs: list[TokenOutput] = []
    for _ in range(steps):
        if not (scheduler.waiting or scheduler.running):
            return outputs
        outputs += step(scheduler)[1]
    raise AssertionError("the scheduler makes no progress")
