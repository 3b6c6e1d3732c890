"""The watch of the stable revision in normal operation: its record by load grows, and it is compared with its predecessor's.

A regression that is proven while the previous revision's replicas are retained rolls back (`promotion.watch`). Later
nothing moves by itself: the condition Regressed, an Event and a metric name the revision.

Where the guard would judge whole answers and these have no output tokens (embeddings, reranking), they are watched in the place of
first tokens. Answers of texts take as long as clients ask for, which another hour's clients do differently.
"""

from __future__ import annotations

from pagefleet_operator.domain.analysis import verdict
from pagefleet_operator.domain.analysis.adjusted import whole_answers
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.analysis.watching import like_load, load_records
from pagefleet_operator.domain.analysis.watching.like_load import LOOK_BACK_SECONDS, Answer, Question
from pagefleet_operator.domain.analysis.watching.minutes import complete, newest_complete
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.logarithms import value_of
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import BaselineRecord, Phase, VerdictRecord
from pagefleet_operator.domain.status.turn import SpecTurn

RECORD_SECONDS = 300.0  # the record is written at most this often
MEMO, MEMO_SIGNAL = "watch", "watched signal"


def keep(turn: SpecTurn, stage: Stage) -> Stage:
    """Watch the stable revision and extend its record, after the rollout's part of the turn."""
    limits = turn.rollout.watch_limits
    if limits is None:
        left = tuple(record for record in stage.baseline if not load_records.is_load_record(record))
        return replace(stage, baseline=left, watch=None)
    if not stage.stable or not stage.traffic:
        return stage
    if stage.record.phase in (Phase.IDLE, Phase.ROLLED_BACK):
        stage = _watched(turn, stage, judge(turn, stage, limits))
    if stage.record.phase is Phase.ROLLING_BACK:
        return stage
    return replace(stage, baseline=recorded(turn, stage, RECORD_SECONDS))


def judge(turn: SpecTurn, stage: Stage, limits: LatencyGuard) -> Answer:
    """Compare the stable with its predecessor's record. The result of a minute is in the memo."""
    slices, memo = turn.observation.slices, turn.observation.memo
    since = stage.previous.since if stage.previous else 0.0
    limits = _watched_limits(turn, stage, limits)
    own, before = _records(stage, limits.signal)
    question = Question(limits, before, since, turn.now, own)
    key = (newest_complete(turn.now), limits, stage.stable, stage.watch, stage.baseline)
    stored = memo.get(MEMO)
    if isinstance(stored, tuple) and stored[0] == key and isinstance(stored[1], Answer):
        return stored[1]
    answer = like_load.judge(question, slices or (), turn.reading(stage.stable), stage.watch)
    memo[MEMO] = (key, answer)
    return answer


def verdict_of(limits: LatencyGuard, answer: Answer) -> VerdictRecord | None:
    """The numbers of a conviction, as a rejection stores them."""
    if answer.record is None:
        return None
    value = value_of(answer.log)
    share = answer.hits / max(1, answer.trials)
    record = verdict.record_without_latency(answer.record.signal, share, 1 - limits.quantile, answer.trials, value)
    return verdict.make_verdict(Outcome.REGRESSED, record, answer.record.message).record


def handed_over(turn: SpecTurn, stage: Stage) -> tuple[BaselineRecord, ...]:
    """The record that a canary is held to once it is promoted: the stable's, and an earlier one's for other loads."""
    if turn.rollout.watch_limits is None:
        return ()
    own, before = _records(replace(stage, baseline=recorded(turn, stage, 0.0)))
    usable = {
        (one.signal, one.stratum): one
        for one in (*before, *own)
        if sum(one.histogram.values()) >= load_records.MIN_REQUESTS
    }
    largest = sorted(usable.values(), key=lambda one: -sum(one.histogram.values()))[: load_records.MAX_RECORDS]
    return tuple(sorted(largest, key=lambda one: (one.signal, one.stratum)))


def recorded(turn: SpecTurn, stage: Stage, interval: float) -> tuple[BaselineRecord, ...]:
    """The baseline with what the stable's record has grown by, if it is older than `interval` seconds.

    While there is evidence against the stable, its record does not grow. Slow times must not become the expected ones.
    """
    limits, slices = turn.rollout.watch_limits, turn.observation.slices
    limits = None if limits is None else _watched_limits(turn, stage, limits)
    own, _ = _records(stage, "" if limits is None else limits.signal)
    until = max((record.until for record in own), default=0.0)
    if limits is None or slices is None or stage.watch is not None or turn.now - until < interval:
        return stage.baseline
    if newest_complete(turn.now) <= until:
        return stage.baseline
    promoted = stage.previous.since if stage.previous else 0.0
    since = max(until, promoted, turn.now - LOOK_BACK_SECONDS)
    whole = limits.signal == whole_answers.SIGNAL
    minutes = complete(slices, turn.reading(stage.stable), since, turn.now, whole=whole)
    if not minutes:
        return stage.baseline
    others = tuple(one for one in stage.baseline if one not in own)
    return (*load_records.grown(own, minutes, stage.stable, limits.quantile, limits.signal), *others)


def _watched_limits(turn: SpecTurn, stage: Stage, limits: LatencyGuard) -> LatencyGuard:
    """The limits on the first tokens, or on the whole answers that stand in for them. The choice of a minute is in the memo."""
    guard, memo, until = turn.rollout.guard, turn.observation.memo, newest_complete(turn.now)
    if guard.latency and not guard.whole_answers:  # the spec names what is judged
        return limits
    stored = memo.get(MEMO_SIGNAL)
    if not (isinstance(stored, tuple) and stored[0] == (until, stage.stable)):
        slices = turn.observation.slices or ()
        recent = [one for one in slices if until - LOOK_BACK_SECONDS <= one.start < until]
        stored = memo[MEMO_SIGNAL] = (until, stage.stable), whole_answers.without_tokens(recent, stage.stable)
    whole = stored[1]
    if whole is None:  # nothing has been measured lately
        whole = _last_signal(stage) == whole_answers.SIGNAL
    return whole_answers.entry_for(limits) if whole else limits


def _last_signal(stage: Stage) -> str:
    """The signal that was judged or recorded last; "" where none was."""
    if stage.watch is not None:
        return like_load.signal_of(stage.watch)
    newest = max(load_records.only(stage.baseline), key=lambda one: one.until, default=None)
    return newest.signal if newest else ""


def _records(stage: Stage, signal: str = "") -> tuple[tuple[BaselineRecord, ...], tuple[BaselineRecord, ...]]:
    """The records by load of the stable revision, and those of earlier ones."""
    by_load = load_records.only(stage.baseline, signal)
    own = tuple(one for one in by_load if one.revision == stage.stable)
    return own, tuple(one for one in by_load if one.revision != stage.stable)


def _watched(turn: SpecTurn, stage: Stage, answer: Answer) -> Stage:
    """Store the evidence, and make the beginning and the end of a regression Events."""
    regressed = stage.watch is not None and stage.watch.regressed
    if answer.convicted and not regressed and answer.record is not None:
        text = (
            f"{answer.record.message}. Nothing is rolled back by itself: the replicas of the previous revision are not "
            f"retained. Look at what changed, or `{turn.command('undo')}`"
        )
        turn.journal.note("Regressed", text, warning=True)
    if regressed and not answer.convicted:
        turn.journal.note("RegressionEnded", f"revision {stage.stable} is as quick as recorded at the same load again")
    return replace(stage, watch=answer.record)
