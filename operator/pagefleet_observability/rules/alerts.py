"""Alerts about revisions as they are, and about services. None of them rolls a canary back: at a peak
they are true of a good revision too. Those that may are in rules/canaries.py.

Burn rates: Site Reliability Workbook, chapter 5 (multi-window, multi-burn-rate), with its factors 14.4, 6 and 3 for the
objectives of spec.slo, whose burn rate is a ratio of odds (`recordings`). A service without objectives has a default one, with
a budget of 5 %. Its factors are 6 (30 % slow requests) and 2 (10 %).
"""

from __future__ import annotations

from pagefleet_observability.rules.recordings import (
    ALLOWED,
    BY,
    FALLBACKS,
    PREFILL_QUEUE,
    REQUESTS,
    SERVICE,
    TTFT_BUDGET,
    TTFT_SECONDS,
    burn,
    missed,
    slow,
)
from pagefleet_observability.rules.rule import Alert, Group, Severity

FAST_BURN, SLOW_BURN = 6, 2
MIN_RATE = "0.02"  # requests per second; a share of fewer requests is noise
MIN_MISSES = 10  # in a day; one of three requests at night is no trend
PAGE, TICKET = Severity.PAGE, Severity.TICKET
NAME = "{{ $labels.namespace }}/{{ $labels.service }}"
REVISION = f"Revision {{{{ $labels.revision }}}} of {NAME}"
SHARE = "{{ $value | humanizePercentage }}"
OBJECTIVE = f"Objective {{{{ $labels.objective }}}} of {NAME}"
# With those that the gateway itself refused: of a service without any pod there are no others.
SERVICE_RATE = f'sum by ({SERVICE}) (rate({REQUESTS}{{service!=""}}[5m]))'


def _burn(level: str, factor: int, windows: tuple[str, str]) -> str:
    limit = f"{factor * TTFT_BUDGET:g}"
    return " and ".join(f"{slow(level, window)} > {limit}" for window in windows)


def _without_objectives(expr: str) -> str:
    return f"({expr}) unless on ({SERVICE}) {ALLOWED}"


def _both(factor: float, windows: tuple[str, str]) -> str:
    """The burn rate of the longer window, where that and the shorter one's are above the factor."""
    shorter, longer = map(burn, windows)
    return f"({longer} > {factor:g} and {shorter} > {factor:g})"


def _busy(expr: str) -> str:
    return f"({expr}) and revision:pagefleet_gateway_requests:rate5m > {MIN_RATE}"


def _condition(selector: str) -> str:
    return f"max by ({SERVICE}, reason) (pagefleet_condition{{{selector}}}) == 1"


def _one_of(expr: str) -> str:
    """One series of each service, whatever reason it has."""
    return f"topk by ({SERVICE}) (1, {expr})"


def _mean(series: str, window: str) -> str:
    """The mean of a gauge in a window by service, over the series of all operators that have led meanwhile."""
    total, number = (f"sum by ({SERVICE}) ({of}_over_time({series}[{window}]))" for of in ("sum", "count"))
    return f"{total} / {number}"


def _replicas(state: str, window: str = "", metric: str = "pagefleet_replicas") -> str:
    """With a window the fewest in it, of all operators that have led meanwhile: the series of a new one has no past."""
    series = f'{metric}{{state="{state}"}}'
    return f"min by ({BY}) (min_over_time({series}[{window}]))" if window else f"max by ({BY}) ({series})"


def _prefills(matcher: str = "") -> str:
    return f"sum by ({BY}) (rate(pagefleet_gateway_prefills_total{matcher}[5m]))"


PREFILL_PODS, MAX_PREFILL_QUEUE = "pagefleet_prefill_replicas", 4
PREFILLS, PREFILLS_FAILED = _prefills(), _prefills(f'{{outcome=~"{FALLBACKS}"}}')

REVISIONS = Group(
    "pagefleet-revisions",
    (
        Alert(
            "PagefleetRequestsRefused",
            PAGE,
            _busy("revision:pagefleet_gateway_refused:ratio_rate5m > 0.2"),
            "2m",
            f"{REVISION} refuses {SHARE} of its requests",
            "More than a fifth of the requests that were routed to this revision were answered 4xx for two minutes.",
        ),
        Alert(
            "PagefleetRequestsFailed",
            PAGE,
            _busy("revision:pagefleet_gateway_failed:ratio_rate5m > 0.05"),
            "2m",
            f"{REVISION} fails {SHARE} of its requests",
            "More than 5 % of the requests that were routed to this revision were answered 5xx for two minutes.",
        ),
        Alert(
            "PagefleetPrefillsFail",
            TICKET,
            f"{PREFILLS_FAILED} / {PREFILLS} > 0.1 and {PREFILLS} > {MIN_RATE}",
            "10m",
            f"{REVISION}: {SHARE} of long prompts are not computed by its prefill pods",
            "Prefill pods are not reached, take too long or fail. vLLM's decode pods compute these prompts themselves, and other streams"
            " wait for that; with SGLang such requests fail.",
        ),
        Alert(
            "PagefleetPrefillPodsNotReady",
            TICKET,
            f"{_replicas('ready', metric=PREFILL_PODS)} / {_replicas('desired', '10m', PREFILL_PODS)} < 0.5",
            "10m",
            f"{REVISION}: {SHARE} of its prefill pods are ready",
            "Fewer than half of a revision's prefill pods have been ready for ten minutes: without one vLLM's decode pods compute every"
            " long prompt themselves, and with SGLang every request fails.",
        ),
        Alert(
            "PagefleetPrefillQueueLong",
            TICKET,
            f"{PREFILL_QUEUE} > {MAX_PREFILL_QUEUE}",
            "10m",
            f"{REVISION}: {{{{ $value | humanize }}}} prompts wait in each of its prefill pods",
            f"For ten minutes more than {MAX_PREFILL_QUEUE} prompts have waited in each prefill pod, in the mean: their first tokens are"
            " late by as many prompts.",
        ),
        Alert(
            "PagefleetTTFTBurnFast",
            PAGE,
            _without_objectives(_busy(_burn("revision", FAST_BURN, ("5m", "1h")))),
            "2m",
            f"{REVISION}: {SHARE} of streamed answers begin later than {TTFT_SECONDS} s",
            f"The budget for slow first tokens (5 % over {TTFT_SECONDS} s) burns {FAST_BURN} times too fast, over 5 min and 1 h.",
        ),
        Alert(
            "PagefleetRegressed",
            PAGE,
            f"max by ({BY}) (pagefleet_regressed) > 0",
            "",
            f"{REVISION} has become slower: {SHARE} of its requests are slower than recorded at the same load",
            "The stable revision is proven to be slower than its predecessor, or than it was itself, at the same load. Nothing rolls back by itself.",
        ),
        Alert(
            "PagefleetFreeKVPagesLow",
            PAGE,
            "revision:pagefleet_kv_pages_free:ratio < 0.1",
            "5m",
            f"{REVISION}: {SHARE} of a replica's KV pages are free",
            "Less than 10 % of the KV pages of one replica were free or reclaimable for five minutes.",
        ),
        Alert(
            "PagefleetNoReadyReplica",
            PAGE,
            f"{_replicas('ready')} == 0 and {_replicas('desired', '30m')} > 0 and max by ({BY}) (pagefleet_weight) > 0",
            "2m",
            f"{REVISION} has traffic and no ready replica",
            "The revision has traffic and desired replicas (for at least 30 min), but none has been ready for two minutes.",
        ),
        Alert(
            "PagefleetQueueSaturated",
            TICKET,
            "revision:pagefleet_queue:saturation > 1",
            "10m",
            f"{REVISION}: {{{{ $value | humanize }}}} requests wait for each one that runs",
            "More requests have waited in the engines than ran there for ten minutes.",
        ),
    ),
)

SERVICES = Group(
    "pagefleet-services",
    (
        Alert(
            "PagefleetSLOBurnFast",
            PAGE,
            f"({_both(14.4, ('5m', '1h'))} or {_both(6, ('30m', '6h'))}) and on ({SERVICE}) {SERVICE_RATE} > {MIN_RATE}",
            "2m",
            f"{OBJECTIVE} misses its promise {{{{ $value | humanize }}}} times as often as it may",
            "Of an error budget of 30 days, 2 % is used in an hour or 5 % in six hours (of one of 7 days, 9 % or 21 %); at this pace the rest is"
            " gone within days.",
        ),
        Alert(
            "PagefleetSLOBurnSlow",
            TICKET,
            f"{_both(3, ('2h', '1d'))} and {missed('1d')} >= {MIN_MISSES}",
            "15m",
            f"{OBJECTIVE} misses its promise {{{{ $value | humanize }}}} times as often as it may",
            f"A tenth of an error budget of 30 days is used in a day, by {MIN_MISSES} requests at least; at this pace it is gone before the"
            " window ends.",
        ),
        Alert(
            "PagefleetSLOBudgetExhausted",
            TICKET,
            f"max by ({SERVICE}, objective) (pagefleet_slo_budget_left_ratio) < 0",
            "5m",
            f"The error budget of {OBJECTIVE} is used up",
            "More requests missed the objective in spec.slo's window than may: what is left is negative.",
        ),
        Alert(
            "PagefleetTTFTBurnSlow",
            TICKET,
            _without_objectives(
                f"({_burn('service', SLOW_BURN, ('30m', '6h'))}) and"
                f" sum by ({SERVICE}) (rate(pagefleet_gateway_ttft_seconds_count[30m])) > {MIN_RATE}"
            ),
            "15m",
            f"{NAME}: {SHARE} of streamed answers begin later than {TTFT_SECONDS} s",
            f"The budget for slow first tokens (5 % over {TTFT_SECONDS} s) burns {SLOW_BURN} times too fast, over 30 min and 6 h.",
        ),
        Alert(
            "PagefleetGatewayShedding",
            TICKET,
            "service:pagefleet_gateway_shed:ratio_rate5m > 0.05",
            "5m",
            f"The gateway rejects {SHARE} of the requests for {NAME}",
            "The gateway itself answers them with 429 or 503: queues are full, rate limits are reached, or no pod is available.",
        ),
        Alert(
            "PagefleetRequestsHeld",
            TICKET,
            f"sum by ({SERVICE}) (pagefleet_gateway_held) > 0",
            "5m",
            f"{{{{ $value }}}} requests for {NAME} wait in the gateway",
            "There have been waiting requests for five minutes: the service does not wake from zero, or its pods are full.",
        ),
        Alert(
            "PagefleetRolledBack",
            TICKET,
            _condition('type="RolledBack",status="True"'),
            "",
            f"{NAME} was rolled back: {{{{ $labels.reason }}}}",
            "The revision of the spec was rejected; the last good one serves. The alert ends when the spec changes.",
        ),
        Alert(
            "PagefleetGuardInconclusive",
            TICKET,
            f'max by ({BY}) (pagefleet_rollout{{phase=~"Step|Mirroring|Watching"}})'
            f' and on ({SERVICE}) pagefleet_condition{{type="Analysed",reason="Inconclusive"}}'
            # After the time of the watch nothing is judged any more, also while the previous revision's replicas are retained.
            f' and on ({SERVICE}) pagefleet_condition{{type="Progressing",status="True"}}',
            "1h",
            f"{REVISION}: the guard has had no verdict for an hour",
            "There are too few requests, a signal is missing, or the difference is near the limit. A step does not end meanwhile.",
        ),
        Alert(
            "PagefleetScalerAtMaximum",
            TICKET,
            # With the last replica refused it is the one or the other, as the load needs more than the maximum or not.
            _one_of(_condition('type="Scaling",reason=~"AtMaximum|Refused"')),
            "15m",
            f"{NAME} needs more replicas than it can get ({{{{ $labels.reason }}}})",
            "AtMaximum: spec.scaling.max is reached. Refused: the cluster has no room, or a quota is used up.",
            passing="reason",
        ),
        Alert(
            "PagefleetCostCeiling",
            TICKET,
            _condition('type="Scaling",reason="CostCeiling"'),
            "15m",
            f"{NAME} needs more replicas than spec.cost allows",
            "The load would take more replicas; the ceiling per hour, or a spent budget, keeps them from being started.",
        ),
        Alert(
            "PagefleetBudgetAtRisk",
            TICKET,
            _condition('type="WithinBudget",reason="ForecastAboveBudget"'),
            "6h",
            f"{NAME} will have cost more by the end of the month than spec.cost.budget.perMonth",
            "The month's cost so far, and the mean of the last seven days for the rest of it, exceed the budget.",
        ),
        Alert(
            "PagefleetBudgetReached",
            TICKET,
            _condition('type="WithinBudget",status="False"'),
            "",
            f"{NAME} gives up requests or replicas for its budget ({{{{ $labels.reason }}}})",
            "NearlySpent: classes of requests are refused. BudgetReached: replicas are capped as well, until the month ends.",
        ),
        Alert(
            "PagefleetCapacityWorseThanPlanned",
            TICKET,
            _condition('type="CapacityAsPlanned",reason="WorseThanPlanned"'),
            "30m",
            f"{NAME} does less, or is asked for more, than spec.capacityPlan assumes",
            "A measured number is further from the capacity plan than its tolerance. The condition's message has the replicas that it means.",
        ),
        Alert(
            "PagefleetTokensDear",
            TICKET,
            f"max by ({SERVICE}) (pagefleet_cost_per_1k_tokens) > 3 * {_mean('pagefleet_cost_per_1k_tokens', '7d')}",
            "2h",
            f"1000 tokens of {NAME} cost {{{{ $value | humanize }}}}",
            "The cost has been above three times the mean of the last week for two hours: replicas are idle, or each generates fewer tokens.",
        ),
        Alert(
            "PagefleetScalingBlind",
            TICKET,
            _condition('type="Scaling",reason="SignalsMissing"'),
            "10m",
            f"The load of {NAME} is not known",
            "The load report of an engine or a gateway is missing; the service is not scaled down until it is back.",
        ),
        Alert(
            "PagefleetServiceDegraded",
            TICKET,
            # An image that cannot be pulled has two reasons in turn, and neither lasts for ten minutes.
            _one_of(_condition('type="Degraded",status="True"')),
            "10m",
            f"{NAME} is degraded: {{{{ $labels.reason }}}}",
            "The spec is invalid, or pods of a revision in use cannot run. The condition's message names the field.",
            passing="reason",
        ),
    ),
)
