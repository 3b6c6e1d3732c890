"""Alerts that compare a canary with the other revisions of its service at the same time.

A page of this group names the canary, so that Alertmanager sends it to the operator, which rolls the canary back. It
counts only answers that do not depend on the load of a replica: a canary has fewer replicas than the stable revision, so
that 429, 408 and 504 come earlier there at a peak, and so do late first tokens. The operator's guard compares latencies
like with like. The alert on them here is a ticket.

A difference must be larger than chance makes it: DEVIATIONS standard deviations of a share of so many requests.
"""

from __future__ import annotations

from pagefleet_observability.rules.recordings import BY, REQUESTS, SERVICE
from pagefleet_observability.rules.rule import Alert, Group, Recording, Severity

WINDOW_SECONDS = 300
MIN_RATE = "0.17"  # requests per second: 51 in the window
TIMES, DEVIATIONS = 3, 4
SLOWER = 1.5
CANARY = "revision:pagefleet_rollout:canary"
RATE = "revision:pagefleet_gateway_requests:rate5m"
FAULTS, REJECTIONS = "pagefleet_gateway_faults", "pagefleet_gateway_rejections"
TTFT = "revision:pagefleet_gateway_ttft_seconds:p95_5m"
OTHERS_RATE = "service:pagefleet_gateway_requests:others_rate5m"
REVISION = "Canary {{ $labels.revision }} of {{ $labels.namespace }}/{{ $labels.service }}"


def _share(name: str, codes: str) -> Recording:
    """The share of answers with `codes`, by revision; 0 where there is none.

    A revision without requests has no share: it would be NaN, and so would every sum over the revisions.
    """
    counted = f'rate({REQUESTS}{{{codes},revision!=""}}[5m])'
    whole = f'sum by ({BY}) (rate({REQUESTS}{{revision!=""}}[5m]))'
    return Recording(f"revision:{name}:ratio_rate5m", f"(sum by ({BY}) ({counted}) or 0 * {whole}) / ({whole} > 0)")


def _others(value: str) -> str:
    """The sum of a value over the revisions that are no canary."""
    return f"sum by ({SERVICE}) (({value}) unless on ({BY}) {CANARY})"


def _limit(name: str, least: str) -> Recording:
    """The accepted share of a canary: TIMES that of the others' requests together, and at least `least`."""
    failed = _others(f"revision:{name}:ratio_rate5m * on ({BY}) {RATE}")
    share = f"{TIMES} * {failed} / ({OTHERS_RATE} > {MIN_RATE})"
    return Recording(f"service:{name}:limit_rate5m", f"clamp_max(clamp_min({share}, {least}), 1)")


def _exceeds(name: str) -> str:
    """The canary's share, where it is above the limit by more than chance.

    The variance of the canary's share at the limit L is L (1 - L) / n. That of the limit, TIMES a share L / TIMES of m
    requests, is at most TIMES L / m.
    """
    own, limit = f"revision:{name}:ratio_rate5m", f"service:{name}:limit_rate5m"
    each = f"1 / ({WINDOW_SECONDS} * {RATE}) * on ({SERVICE}) group_left () ({limit} * (1 - {limit}))"
    known = f"{TIMES} * {limit} / ({WINDOW_SECONDS} * {OTHERS_RATE})"
    deviation = f"sqrt({each} + on ({SERVICE}) group_left () ({known}))"
    excess = f"({own} - on ({SERVICE}) group_left () {limit}) > {DEVIATIONS} * {deviation}"
    return f"{own} and on ({BY}) {CANARY} and on ({BY}) {RATE} > {MIN_RATE} and on ({BY}) ({excess})"


CANARIES = Group(
    "pagefleet-canaries",
    (
        Recording(CANARY, f'max by ({BY}) (pagefleet_rollout{{phase!~"Starting|Watching|RollingBack"}})'),
        Recording(OTHERS_RATE, _others(RATE)),
        _share(FAULTS, 'code=~"5..",code!="504"'),
        _share(REJECTIONS, 'code=~"4..",code!~"408|429|499"'),
        _limit(FAULTS, "0.05"),
        _limit(REJECTIONS, "0.2"),
        Alert(
            "PagefleetCanaryRejects",
            Severity.PAGE,
            _exceeds(REJECTIONS),
            "2m",
            f"{REVISION} rejects {{{{ $value | humanizePercentage }}}} of its requests, the other revisions do not",
            "The canary answers far more requests 4xx (408, 429 and 499 apart) than the other revisions at the same time.",
            compares=True,
        ),
        Alert(
            "PagefleetCanaryFails",
            Severity.PAGE,
            _exceeds(FAULTS),
            "2m",
            f"{REVISION} fails {{{{ $value | humanizePercentage }}}} of its requests, the other revisions do not",
            "The canary answers far more requests 5xx (504 apart) than the other revisions at the same time.",
            compares=True,
        ),
        Alert(
            "PagefleetCanarySlower",
            Severity.TICKET,
            f"{TTFT} and on ({BY}) {CANARY} and on ({BY}) {RATE} > {MIN_RATE} and on ({BY})"
            f" ({TTFT} > on ({SERVICE}) group_left () ({SLOWER} * max by ({SERVICE}) ("
            f"({TTFT} and on ({BY}) {RATE} > {MIN_RATE}) unless on ({BY}) {CANARY})))",
            "10m",
            f"{REVISION}: the p95 of its first tokens is {{{{ $value | humanizeDuration }}}}",
            f"It has been above {SLOWER} times that of the other revisions for ten minutes. Load and prompts may differ: the guard judges.",
        ),
    ),
)
