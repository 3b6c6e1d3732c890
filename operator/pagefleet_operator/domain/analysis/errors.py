"""The error signal of the guard: a test whether more of the canary's requests fail than the spec accepts.

Failures come in bursts, so they must lie in several slices. Seconds in which most of the stable's requests fail too
say something about the machine, not about the canary, and are left out.

An attempt that failed before another attempt is a failure of the revision whose pod failed, although the client may have
got its answer: retries would hide such a canary until it has all traffic.

A 4xx is the client's error, and no failure. But a revision that refuses what the stable accepts (a smaller context, a
broken chat template) is a regression too, so an excess of the canary's 4xx is a signal of its own, `clientErrors`. It
convicts only when it is unmistakable: one client with bad requests must roll nothing back. With sticky sessions all
requests of such a client come to one revision.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from pagefleet_operator.domain.analysis import sequential
from pagefleet_operator.domain.analysis.accumulate import FailureCounts
from pagefleet_operator.domain.analysis.sequential import Evidence
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict, make_verdict, record_without_latency, worst_of
from pagefleet_operator.domain.status.status import SignalRecord

CONFIDENCE = 0.99
MIN_REQUESTS = 20
SHARED_SHARE, MIN_SHARED_REQUESTS = 0.5, 5  # a period is shared trouble when this share of the stable's requests fails
MIN_FAILING_SLICES = 2
CLIENT_ERRORS = "clientErrors"
CLIENT_PART = 0.1  # of the error level of `errors` is for its client errors
CLEAR_RATIO, CLEAR_SHARE = 5.0, 0.1  # times the stable's share of 4xx, and at least so large a share
MIN_CLIENT_PERIODS = 6
CLIENT_ODDS = (2.0, 5.0, 20.0)
MAX_PERIOD_LOG = 1.5
SUSPICIOUS = 10.0  # an e-value from which a canary that is not convicted does not pass either


def judge(max_rate: float, periods: Collection[FailureCounts], level: float) -> Verdict:
    """`max_rate` is the accepted share of failures, `level` the error level of a conviction."""
    counted = [period for period in periods if not _is_shared(period)]
    evidence = Evidence(sum(period.canary_failed for period in counted), sum(period.canary for period in counted))
    rate = evidence.hits / evidence.trials if evidence.trials else 0.0
    value = sequential.e_value(evidence, min(max(max_rate, 1e-4), 0.99))
    retried = sum(period.canary_retried for period in counted)
    again = f", {retried} of them attempts that were retried on another pod" if retried else ""
    text = (
        f"errors: {evidence.hits} of {evidence.trials} canary requests failed ({rate:.2%}, limit {max_rate:.2%}){again}"
    )
    record = record_without_latency("errors", rate, max_rate, evidence.trials, value)
    failing_slices = {start for period in counted for start in period.starts}
    if value >= 1 / ((1 - CLIENT_PART) * level) and len(failing_slices) >= MIN_FAILING_SLICES:
        outcome, message = Outcome.REGRESSED, text
    elif evidence.trials < MIN_REQUESTS:
        outcome, message = Outcome.INCONCLUSIVE, f"errors: {evidence.trials} of the {MIN_REQUESTS} requests needed"
    else:
        outcome, message = Outcome.PASSED if value < SUSPICIOUS else Outcome.INCONCLUSIVE, text
    stable, failed = sum(period.stable for period in periods), sum(period.stable_failed for period in periods)
    shown = SignalRecord(
        "errors", "", outcome.value, stable_samples=stable, canary_samples=evidence.trials, evidence=value,
        message=f"{text}; stable: {failed} of {stable}" if stable else text,
    )  # fmt: skip
    reason = "ErrorRate" if outcome is Outcome.REGRESSED else ""
    verdict = make_verdict(outcome, record, message, None, reason, (shown,))
    client = _judge_client_errors(counted, CLIENT_PART * level)
    return verdict if client is None else worst_of([verdict, client])


def _judge_client_errors(periods: Collection[FailureCounts], level: float) -> Verdict | None:
    """Judge the canary's 4xx against the stable's at the same time; None while the canary has answered none.

    In the periods with any 4xx, a canary that refuses no more than CLEAR_RATIO times as often as the stable gets each of
    them with the probability that its share of the requests and this ratio give. The e-value bets against that.
    """
    hits = sum(period.canary_client_errors for period in periods)
    if not hits:
        return None
    trials = hits + sum(period.canary for period in periods)
    stable_hits = sum(period.stable_client_errors for period in periods)
    stable_trials = stable_hits + sum(period.stable for period in periods)
    logs = [sum(_client_log_ratio(period, odds) for period in periods) for odds in CLIENT_ODDS]
    value = math.exp(min(sequential.MAX_EXPONENT, max(logs) - math.log(len(logs))))
    share, stable_share = hits / trials, stable_hits / stable_trials if stable_trials else 0.0
    refusing = sum(period.canary_client_errors > 0 for period in periods)
    clear = value >= 1 / level and share >= CLEAR_SHARE and refusing >= MIN_CLIENT_PERIODS and stable_trials > 0
    outcome = Outcome.REGRESSED if clear else Outcome.PASSED
    text = (
        f"{CLIENT_ERRORS}: {hits} of {trials} canary requests were refused with 4xx ({share:.2%}), "
        f"{stable_hits} of {stable_trials} of the stable ({stable_share:.2%})"
    )
    record = record_without_latency(CLIENT_ERRORS, share, max(CLEAR_SHARE, CLEAR_RATIO * stable_share), trials, value)
    shown = SignalRecord(
        CLIENT_ERRORS, "", outcome.value, stable_samples=stable_trials, canary_samples=trials, evidence=value,
        message=text,
    )  # fmt: skip
    return make_verdict(outcome, record, text, None, "ClientErrors" if clear else "", (shown,))


def _client_log_ratio(period: FailureCounts, odds: float) -> float:
    """The logarithm of the likelihood ratio of one period, bounded so that no single burst convicts."""
    stable, canary = period.stable + period.stable_client_errors, period.canary + period.canary_client_errors
    hits = period.stable_client_errors + period.canary_client_errors
    if not hits or not stable or not canary:
        return 0.0
    null = CLEAR_RATIO * canary / (stable + CLEAR_RATIO * canary)
    alternative = odds * CLEAR_RATIO * canary / (stable + odds * CLEAR_RATIO * canary)
    own = period.canary_client_errors
    ratio = own * math.log(alternative / null) + (hits - own) * math.log((1 - alternative) / (1 - null))
    return min(MAX_PERIOD_LOG, ratio)


def _is_shared(period: FailureCounts) -> bool:
    """Whether most of the stable's requests fail too, so that the period says something about the machine."""
    return period.stable >= MIN_SHARED_REQUESTS and period.stable_failed > SHARED_SHARE * period.stable
