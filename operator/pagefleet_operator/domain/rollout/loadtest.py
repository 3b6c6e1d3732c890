"""Compares the result of a load test with the stored result of the stable revision: a plain comparison of quantiles.

Both ran the same requests at the same rate, but not at the same time. Therefore the canary fails only when the lower
end of its quantile's interval lies above the bound. Without a stored result the first one is stored and passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract import sketch
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.spec.schema.guard_signals import GATEWAY_SIGNALS
from pagefleet_operator.domain.status.observation import MAX_COUNT

MAX_BUCKET = 2000
MAX_TEXT = 200  # characters of an endpoint's path, and of the cause of its failure
MAX_FAILED_SHARE = 0.01  # share of failed requests accepted without spec.rollout.guard.errors


@dataclass(frozen=True)
class LoadTestComparison:
    """`failure` is the reason of a failure, "" when the canary passes; `message` has the numbers."""

    failure: str
    message: str


def parse_result(raw: object) -> dict[str, Any] | None:
    """Read a result as `pagefleet bench` writes it; None when it is not one."""
    if not isinstance(raw, Mapping) or not _count(raw.get("requests")) or not _count(raw.get("errors")):
        return None
    if not raw["requests"] > 0 or raw["errors"] > raw["requests"]:
        return None
    result: dict[str, Any] = {"requests": raw["requests"], "errors": raw["errors"]}
    for name in ("seconds", "outputTokensPerSecond"):
        value = raw.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_COUNT:
            result[name] = value
    failed = raw.get("failedEndpoints")
    if failed is not None:
        if not isinstance(failed, Mapping) or not all(isinstance(cause, str) for cause in failed.values()):
            return None
        result["failedEndpoints"] = {str(path)[:MAX_TEXT]: cause[:MAX_TEXT] for path, cause in failed.items()}
    for name in GATEWAY_SIGNALS:
        histogram = raw.get(name)
        if histogram is None:
            continue
        if not isinstance(histogram, Mapping) or not all(_bucket(k) and _count(v) for k, v in histogram.items()):
            return None
        result[name] = dict(histogram)
    return result


def compare(result: Mapping[str, object], stored: Mapping[str, object], guard: Guard) -> LoadTestComparison:
    """Compare the canary's result with the stable's stored one; a stored one that cannot be read counts as absent."""
    canary, stable = parse_result(result), parse_result(stored) or {}
    if canary is None:
        return LoadTestComparison("the load test's result cannot be read", "")
    if failed := canary.get("failedEndpoints"):
        causes = ", ".join(f"{path} ({cause})" for path, cause in failed.items())
        return LoadTestComparison(f"endpoints of the canary that the load test checks do not work: {causes}", "")
    requests, errors = canary["requests"], canary["errors"]
    limit = guard.max_error_rate if guard.max_error_rate is not None else MAX_FAILED_SHARE
    if errors > limit * requests:
        rate = f"{errors / requests:.2%}, limit {limit:.2%}"
        return LoadTestComparison(f"{errors} of {requests} requests of the load test failed ({rate})", "")
    numbers = [f"load test: {requests} requests, {errors} failed"]
    for entry in guard.latency:
        canary_histogram, stable_histogram = _histogram(canary, entry.signal), _histogram(stable, entry.signal)
        value = sketch.quantile(canary_histogram, entry.quantile)
        if value is None:
            continue
        name = entry.title
        known, interval = (
            sketch.quantile(stable_histogram, entry.quantile),
            sketch.interval(canary_histogram, entry.quantile),
        )
        if known is None or interval is None:
            numbers.append(f"{name} {1000 * value:.0f} ms, the first stored")
            continue
        bound = (1 + entry.max_increase) * known
        if interval[0] > bound:
            return LoadTestComparison(
                f"load test: canary {name} {1000 * value:.0f} ms (at least {1000 * interval[0]:.0f} ms), stable "
                f"{1000 * known:.0f} ms in its own load test, {value / known - 1:+.0%}, limit {entry.max_increase:+.0%}",
                "",
            )
        numbers.append(f"{name} {1000 * value:.0f} ms, the stable's {1000 * known:.0f} ms")
    return LoadTestComparison("", "; ".join(numbers))


def _histogram(result: Mapping[str, object], signal: str) -> dict[int, int]:
    raw = result.get(signal)
    return {int(bucket): int(count) for bucket, count in raw.items()} if isinstance(raw, Mapping) else {}


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def _bucket(name: object) -> bool:
    return isinstance(name, str) and name.isdecimal() and len(name) <= 4 and int(name) <= MAX_BUCKET
