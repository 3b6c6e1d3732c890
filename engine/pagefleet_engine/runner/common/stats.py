"""An engine's reports: the load and counters of its scheduler, the tokens of a step, the limits that it serves."""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_engine.core.kv_events import Journal
from pagefleet_engine.core.limits import Limits, pinnable
from pagefleet_engine.core.requests import Batching, EngineConfig, EngineStats, Policy
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.served import Shape


def engine_stats(scheduler: Scheduler, page_size: int, steps: int) -> EngineStats:
    return EngineStats(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        pages_total=scheduler.pool.total,
        pages_free=scheduler.pool.blank,
        pages_cached=scheduler.pool.cached,
        preemptions=scheduler.preemptions,
        prefix_queries=scheduler.prefix_queries,
        prefix_hits=scheduler.prefix_hits,
        steps=steps,
        waiting_tokens=sum(len(sequence.tokens) for sequence in scheduler.waiting),
        slots_held=sum(len(sequence.pages) for sequence in scheduler.running) * page_size,
        slots_used=sum(sequence.computed for sequence in scheduler.running),
        draft_tokens=scheduler.drafted,
        accepted_tokens=scheduler.accepted,
        running_adapters=_adapters(scheduler.running),
        waiting_adapters=_adapters(scheduler.waiting),
        pins=len(scheduler.pool.pins),
        pages_pinned=scheduler.pool.pins.pages,
        pages_pinnable=scheduler.pool.pins.most,
    )


def _adapters(answers: Sequence[TokenSequence]) -> tuple[str, ...]:
    """Return the names of the adapters that the sequences use, without the version (the text after #)."""
    versions = {sequence.request.adapter for sequence in answers}
    return tuple(sorted({version.rpartition("#")[0] for version in versions if version is not None}))


def journal_of(config: EngineConfig) -> Journal | None:
    """Return the journal of the prefix cache, None where no KV events are published."""
    events = config.kv_events_config
    return Journal(config.page_size) if events is not None and events.publishes else None


def computed(work_items: Sequence[Work]) -> tuple[int, int]:
    """Count the tokens of prompts, and the single tokens with their draft tokens."""
    singles = sum(work.count for work in work_items if work.count == work.drafts + 1)
    return sum(work.count for work in work_items) - singles, singles


def longest(config: EngineConfig, max_position: int) -> int:
    """Return the most tokens of a request. Raises ModelError for more than the model has positions."""
    length = max_position if config.max_model_len is None else config.max_model_len
    if not 2 <= length <= max_position:
        raise ModelError("spec.model.maxLength", f"{length} is not within 2..{max_position}, the model's own length")
    return length


def limits(config: EngineConfig, model: Shape, pages: int, max_model_len: int) -> Limits:
    """Raises ModelError for sizes with which nothing could be computed."""
    share = config.max_pinned_pages_share if config.prefix_caching else 0
    try:
        return Limits(
            page_size=config.page_size,
            pages=pages,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_chunk_tokens=config.max_chunk_tokens,
            long_prompt_tokens=config.long_prompt_tokens,
            max_model_len=max_model_len,
            vocab_size=model.vocab_size,
            batching=Batching(config.batching),
            eos_token_ids=frozenset(model.eos_token_ids),
            prefix_caching=config.prefix_caching,
            policy=Policy(config.scheduling_policy),
            max_pinned_pages=pinnable(pages, share, config.page_size, max_model_len),
        )
    except ValueError as error:
        raise ModelError("spec.engine.args", str(error)) from error
