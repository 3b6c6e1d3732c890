"""Series for each alert that make it fire and series that do not, in promtool's notation (one sample in each interval)."""

from __future__ import annotations

from dataclasses import dataclass, field

Series = dict[str, str]
REV = 'namespace="a",service="chat",revision="c1"'
SVC = 'namespace="a",service="chat"'
OTHER = 'namespace="a",service="chat",revision="s1"'
CANARY = {"namespace": "a", "service": "chat", "revision": "c1"}  # of an alert that compares
REVISION = {"namespace": "a", "service": "chat", "affected_revision": "c1"}  # of every other one
SERVICE = {"namespace": "a", "service": "chat"}


@dataclass(frozen=True)
class Case:
    """`labels` are those of the firing alert beside alertname and severity. `at` is promtool's duration."""

    alert: str
    fires: Series
    quiet: tuple[Series, ...]
    at: str = "30m"
    labels: dict[str, str] = field(default_factory=dict)
    interval: str = "1m"  # between samples, and between evaluations


def requests(by_code: dict[str, int], labels: str = REV) -> Series:
    """Return series of requests a minute by code, for ten hours."""
    return {
        f'pagefleet_gateway_requests_total{{{labels},code="{code}"}}': f"0+{rate}x600" for code, rate in by_code.items()
    }


def prefills(by_outcome: dict[str, int], labels: str = REV) -> Series:
    """Return series of prefill legs a minute by outcome, for ten hours."""
    return {
        f'pagefleet_gateway_prefills_total{{{labels},outcome="{outcome}"}}': f"0+{rate}x600"
        for outcome, rate in by_outcome.items()
    }


def first_tokens(fast: int, all_: int, labels: str = REV) -> Series:
    """Return series of streamed answers a minute within the objective, and in all, for ten hours."""
    return {
        f'pagefleet_gateway_ttft_seconds_bucket{{{labels},le="1.0"}}': f"0+{fast}x600",
        f"pagefleet_gateway_ttft_seconds_count{{{labels}}}": f"0+{all_}x600",
    }


def objective(missed: int, allowed: float = 0.05) -> Series:
    """Return an objective that so many of 100 requests a minute miss, of a busy service, for ten hours."""
    of = f'{REV},objective="chat"'
    return requests({"200": 100}) | {
        f"pagefleet_gateway_slo_requests_total{{{of}}}": "0+100x600",
        f"pagefleet_gateway_slo_missed_total{{{of}}}": f"0+{missed}x600",
        f'pagefleet_gateway_slo_allowed_ratio{{{SVC},objective="chat"}}': f"{allowed}+0x600",
    }


def gpu(used: int, free: int, busy: int = 80, pod: str = "p0") -> Series:
    """Return a GPU that a pod holds, by the DCGM exporter as the GPU Operator has it scraped, beside an engine's pod p0."""
    of = f'namespace="gpu-operator",pod="dcgm-1",exported_namespace="a",exported_pod="{pod}",gpu="0"'
    return {
        f"DCGM_FI_DEV_FB_USED{{{of}}}": f"{used}+0x60",
        f"DCGM_FI_DEV_FB_FREE{{{of}}}": f"{free}+0x60",
        f"DCGM_FI_DEV_GPU_UTIL{{{of}}}": f"{busy}+0x60",
        f'pagefleet_num_requests_running{{{REV},pod="p0"}}': "1+0x60",
    }


def prefill_gpu(used: int, free: int, busy: int = 80) -> Series:
    """Return a GPU that a prefill pod holds, whose engine is scraped with labels of its own, beside a busy one of p0."""
    of = 'namespace="a",prefill_of="chat",prefill_revision="c1",pod="prefill"'
    running = {f"vllm:num_requests_running{{{of}}}": "0+0x60"}
    return gpu(70000, 11000) | gpu(used, free, busy, pod="prefill") | running


def pages(free: str, cached: str) -> Series:
    pod = f'{REV},pod="p0"'
    return {
        f"pagefleet_kv_pages{{{pod}}}": "100+0x60",
        f"pagefleet_kv_pages_free{{{pod}}}": free,
        f"pagefleet_kv_pages_cached{{{pod}}}": cached,
        # Another replica of the revision has room: the fullest one counts.
        f'pagefleet_kv_pages{{{REV},pod="p1"}}': "100+0x60",
        f'pagefleet_kv_pages_free{{{REV},pod="p1"}}': "90+0x60",
        f'pagefleet_kv_pages_cached{{{REV},pod="p1"}}': "0+0x60",
    }


def replicas(ready: str, desired: str, weight: int) -> Series:
    return {
        f'pagefleet_replicas{{{REV},state="ready"}}': ready,
        f'pagefleet_replicas{{{REV},state="desired"}}': desired,
        f"pagefleet_weight{{{REV}}}": f"{weight}+0x60",
    }


def prefill_replicas(ready: str, desired: str) -> Series:
    return {
        f'pagefleet_prefill_replicas{{{REV},state="ready"}}': ready,
        f'pagefleet_prefill_replicas{{{REV},state="desired"}}': desired,
    }


def prefill_queue(*waiting: str) -> Series:
    """Return prompts that wait in each prefill pod."""
    of = 'namespace="a",prefill_of="chat",prefill_revision="c1"'
    return {f'vllm:num_requests_waiting{{{of},pod="p{index}"}}': values for index, values in enumerate(waiting)}


def condition(kind: str, status: str, reason: str, values: str = "1+0x120") -> Series:
    return {f'pagefleet_condition{{{SVC},type="{kind}",status="{status}",reason="{reason}"}}': values}


def queue(waiting: str, running: str) -> Series:
    return {
        f'pagefleet_num_requests_waiting{{{REV},pod="p0"}}': waiting,
        f'pagefleet_num_requests_running{{{REV},pod="p0"}}': running,
    }


def rollout(phase: str) -> Series:
    return {f'pagefleet_rollout{{{REV},phase="{phase}"}}': "1+0x120"}


def judged(phase: str, verdict: str, progressing: str = "True") -> Series:
    progress = condition("Progressing", progressing, phase if progressing == "True" else "Idle")
    return rollout(phase) | condition("Analysed", "Unknown", verdict) | progress


def compared(canary: dict[str, int], stable: dict[str, int], phase: str = "Step") -> Series:
    """Return requests a minute by code of a canary and of the stable revision."""
    return rollout(phase) | requests(canary) | requests(stable, OTHER)


def p95(milliseconds: dict[int, int], labels: str) -> Series:
    """Return first tokens a minute by the bucket in which they came, for ten hours."""
    total, series = 0, dict[str, str]()
    for bound in (100, 250, 500, 1000):
        total += milliseconds.get(bound, 0)
        series[f'pagefleet_gateway_ttft_seconds_bucket{{{labels},le="{bound / 1000}"}}'] = f"0+{total}x600"
    series[f'pagefleet_gateway_ttft_seconds_bucket{{{labels},le="+Inf"}}'] = f"0+{total}x600"
    return series


BUSY = compared({"200": 100}, {"200": 900})
COMPARED = (
    Case("PagefleetCanaryRejects", compared({"200": 40, "400": 60}, {"200": 900}),
         (compared({"200": 40, "400": 60}, {"200": 400, "400": 600}),  # clients have changed
          compared({"200": 40, "429": 60}, {"200": 900}),  # a peak, which one replica meets first
          compared({"200": 90, "400": 10}, {"200": 900}), compared({"400": 6}, {"200": 900}),
          compared({"200": 65, "400": 35}, {"200": 800, "400": 100}),  # three times as many
          compared({"200": 40, "400": 60}, {}), compared({"200": 40, "400": 60}, {"200": 5}),
          compared({"200": 40, "400": 60}, {"200": 900}, "Watching"),
          requests({"200": 40, "400": 60}) | requests({"200": 900}, OTHER)), labels=CANARY),
    Case("PagefleetCanaryFails", compared({"200": 80, "500": 20}, {"200": 900}),
         (compared({"200": 80, "500": 20}, {"200": 700, "500": 200}), compared({"200": 97, "500": 3}, {"200": 900}),
          compared({"200": 80, "504": 20}, {"200": 900}),
          compared({"200": 11, "500": 1}, {"200": 900}),  # one of twelve a minute: chance
          compared({"200": 8, "500": 4}, {"200": 12, "500": 1}),  # the stable's share is not known from 65 requests
          compared({"200": 100}, {"200": 700, "500": 200})), labels=CANARY),
    Case("PagefleetCanarySlower", BUSY | p95({500: 100}, REV) | p95({250: 900}, OTHER),
         (BUSY | p95({500: 100}, REV) | p95({500: 900}, OTHER), BUSY | p95({500: 100}, REV)), labels=REVISION),
)  # fmt: skip

# A service wakes from zero, and another operator leads from then on: its series has no past.
WOKEN = {
    f'pagefleet_replicas{{{REV},state="{state}",pod="{pod}"}}': values
    for pod, before, after in (("o1", "0+0x32", "0+0x32"), ("o2", "_x33 0+0x27", "_x33 1+0x27"))
    for state, values in (("ready", before), ("desired", after))
} | {f"pagefleet_weight{{{REV}}}": "100+0x60"}

PAGES = (
    Case("PagefleetRequestsRefused", requests({"200": 60, "429": 40}),
         (requests({"200": 90, "429": 10}), requests({"404": 100}, f'{SVC},revision=""'),
          requests({"400": 1}, REV)), labels=REVISION),
    Case("PagefleetRequestsFailed", requests({"200": 90, "500": 10}),
         (requests({"200": 98, "500": 2}), requests({"200": 60, "429": 40})), labels=REVISION),
    Case("PagefleetTTFTBurnFast", requests({"200": 100}) | first_tokens(60, 100),
         (requests({"200": 100}) | first_tokens(80, 100), first_tokens(60, 100),
          objective(0) | first_tokens(60, 100)), labels=REVISION),
    Case("PagefleetSLOBurnFast", objective(50),
         (objective(20), objective(50, allowed=0.5), objective(1, allowed=0.002)),
         labels={**SERVICE, "objective": "chat"}),
    Case("PagefleetFreeKVPagesLow", pages("4+0x60", "5+0x60"),
         (pages("4+0x60", "6+0x60"), pages("4+0x27 50+0x32", "5+0x60"),
          {f'vllm:kv_cache_usage_perc{{{REV},pod="p0"}}': "0.85+0x60"}), labels=REVISION),
    Case("PagefleetNoReadyReplica", replicas("2+0x20 0+0x39", "2+0x60", 100),
         (replicas("2+0x60", "2+0x60", 100), replicas("0+0x60", "0+0x60", 100), replicas("0+0x60", "0+0x20 1+0x39", 100),
          replicas("0+0x60", "1+0x60", 0), WOKEN), at="40m", labels=REVISION),
    Case("PagefleetOperatorNotLeading",
         {'pagefleet_operator_leader{namespace="s",pod="o1"}': "1+0x10 0+0x50",
          'pagefleet_operator_leader{namespace="s",pod="o2"}': "0+0x60"},
         ({'pagefleet_operator_leader{namespace="s",pod="o1"}': "0+0x60",
           'pagefleet_operator_leader{namespace="s",pod="o2"}': "1+0x60"},), labels={"namespace": "s"}),
    Case("PagefleetGatewayAbsent", {}, ({'pagefleet_gateway_watch_synced{kind="pods"}': "1+0x60"},)),
)  # fmt: skip

# Of the three requests of a night one has missed its objective.
AT_NIGHT = objective(0) | {
    f'pagefleet_gateway_slo_{name}_total{{{REV},objective="chat"}}': f"0+0x71 {count}+0x30"
    for name, count in (("requests", 3), ("missed", 1))
}

TICKETS = (
    Case("PagefleetQueueSaturated", queue("20+0x60", "8+0x60"),
         (queue("6+0x60", "8+0x60"), queue("20+0x24 0+0x36", "8+0x60")), labels=REVISION),
    Case("PagefleetTTFTBurnSlow", first_tokens(85, 100),
         (first_tokens(95, 100), {  # the one request of the day has woken the service
             f'pagefleet_gateway_ttft_seconds_bucket{{{REV},le="1.0"}}': "0+0x100",
             f"pagefleet_gateway_ttft_seconds_count{{{REV}}}": "0+0x80 1+0x20",
          }), at="7h", labels=SERVICE, interval="5m"),
    Case("PagefleetSLOBurnSlow", objective(16), (objective(10), objective(16, allowed=0.1), AT_NIGHT), at="7h",
         labels={**SERVICE, "objective": "chat"}, interval="5m"),
    Case("PagefleetSLOBudgetExhausted", {f'pagefleet_slo_budget_left_ratio{{{SVC},objective="chat"}}': "-0.2+0x60"},
         ({f'pagefleet_slo_budget_left_ratio{{{SVC},objective="chat"}}': "0.2+0x60"},),
         labels={**SERVICE, "objective": "chat"}),
    Case("PagefleetGatewayShedding",
         requests({"200": 90}) | requests({"429": 10}, f'{SVC},revision=""'),
         (requests({"200": 97}) | requests({"429": 3}, f'{SVC},revision=""'), requests({"200": 50, "429": 50})),
         labels=SERVICE),
    Case("PagefleetRequestsHeld", {f"pagefleet_gateway_held{{{SVC}}}": "3+0x60"},
         ({f"pagefleet_gateway_held{{{SVC}}}": "3+0x27 0+0x32"},), labels=SERVICE),
    Case("PagefleetRolledBack", condition("RolledBack", "True", "LatencyRegression"),
         (condition("RolledBack", "False", "NotRolledBack"),), labels={**SERVICE, "reason": "LatencyRegression"}),
    Case("PagefleetRegressed", {f'pagefleet_regressed{{{REV},signal="ttft p95"}}': "0.3+0x60"},
         ({f'pagefleet_regressed{{{REV},signal="ttft p95"}}': "0.3+0x20 _x40"},), labels=REVISION),
    Case("PagefleetGuardInconclusive", judged("Step", "Inconclusive"),
         (judged("Step", "Passed"), judged("Starting", "Inconclusive"), condition("Analysed", "Unknown", "Inconclusive"),
          # It was watched long enough, and the previous revision's replicas are retained (keepPrevious).
          judged("Watching", "Inconclusive", progressing="False")), at="70m", labels=REVISION),
    Case("PagefleetScalerAtMaximum", condition("Scaling", "False", "AtMaximum"),
         (condition("Scaling", "True", "ReplicasChanging"),), labels=SERVICE),
    Case("PagefleetCostCeiling", condition("Scaling", "False", "CostCeiling"),
         (condition("Scaling", "False", "AtMaximum"),), labels={**SERVICE, "reason": "CostCeiling"}),
    Case("PagefleetBudgetAtRisk", condition("WithinBudget", "True", "ForecastAboveBudget"),
         (condition("WithinBudget", "True", "WithinBudget"),), at="7h",
         labels={**SERVICE, "reason": "ForecastAboveBudget"}, interval="10m"),
    Case("PagefleetBudgetReached", condition("WithinBudget", "False", "NearlySpent"),
         (condition("WithinBudget", "True", "ForecastAboveBudget"),), labels={**SERVICE, "reason": "NearlySpent"}),
    Case("PagefleetCapacityWorseThanPlanned", condition("CapacityAsPlanned", "False", "WorseThanPlanned"),
         (condition("CapacityAsPlanned", "False", "BetterThanPlanned"),), at="1h",
         labels={**SERVICE, "reason": "WorseThanPlanned"}),
    Case("PagefleetAcceleratorMemoryFull", gpu(80400, 600),
         (gpu(70000, 11000), gpu(80400, 600, pod="other"), prefill_gpu(80400, 600)), labels=REVISION),
    Case("PagefleetAcceleratorIdle", gpu(70000, 11000, busy=2),
         (gpu(70000, 11000, busy=20), gpu(70000, 11000, busy=2, pod="other"), prefill_gpu(70000, 11000, busy=2)),
         at="3h", labels=REVISION, interval="5m"),
    Case("PagefleetTokensDear", {f"pagefleet_cost_per_1k_tokens{{{SVC}}}": "1+0x200 9+0x10"},
         ({f"pagefleet_cost_per_1k_tokens{{{SVC}}}": "1+0x200 2+0x10"},), at="103h", labels=SERVICE, interval="30m"),
    Case("PagefleetScalingBlind", condition("Scaling", "False", "SignalsMissing"),
         (condition("Scaling", "False", "Stable"),), labels={**SERVICE, "reason": "SignalsMissing"}),
    Case("PagefleetServiceDegraded", condition("Degraded", "True", "ImagePullFailed"),
         (condition("Degraded", "False", "AsExpected"),), labels=SERVICE),
    Case("PagefleetPrefillsFail", prefills({"remote": 8, "timeout": 2}),
         (prefills({"remote": 10, "local": 5, "timeout": 1}), prefills({"unreached": 0})), labels=REVISION),
    Case("PagefleetPrefillPodsNotReady", prefill_replicas("1+0x60", "3+0x60"),
         (prefill_replicas("2+0x60", "3+0x60"), prefill_replicas("0+0x60", "0+0x25 3+0x35")), labels=REVISION),
    Case("PagefleetPrefillQueueLong", prefill_queue("7+0x60", "3+0x60"),
         (prefill_queue("7+0x60", "0+0x60"), queue("9+0x60", "1+0x60")), labels=REVISION),
    Case("PagefleetOperatorLagging", {'pagefleet_operator_loop_lag_seconds{namespace="s",pod="o1"}': "2+0x60"},
         ({'pagefleet_operator_loop_lag_seconds{namespace="s",pod="o1"}': "0.1+0x60"},),
         labels={"namespace": "s", "pod": "o1"}),
    Case("PagefleetOperatorErrors",
         {'pagefleet_operator_reconcile_errors_total{namespace="s",kind="ApiException"}': "0+12x60"},
         ({'pagefleet_operator_reconcile_errors_total{namespace="s",kind="ApiException"}': "0+1x60"},),
         labels={"namespace": "s", "kind": "ApiException"}),
    Case("PagefleetOperatorWatchRestarts", {'pagefleet_operator_watch_restarts_total{namespace="s"}': "0+1x60"},
         ({'pagefleet_operator_watch_restarts_total{namespace="s"}': "0+0x20 3+0x40"},), labels={"namespace": "s"}),
    Case("PagefleetGatewayWatchRestarts",
         {'pagefleet_gateway_watch_restarts_total{namespace="s",kind="pods"}': "0+1x60"},
         ({'pagefleet_gateway_watch_restarts_total{namespace="s",kind="pods"}': "0+0x60"},),
         labels={"namespace": "s", "kind": "pods"}),
    Case("PagefleetGatewayPodsEjected", {'pagefleet_gateway_pods_ejected{namespace="s"}': "1+0x60"},
         ({'pagefleet_gateway_pods_ejected{namespace="s"}': "0+0x60"},), labels={"namespace": "s"}),
    Case("PagefleetGatewayKeysInvalid", {'pagefleet_gateway_api_keys_valid{namespace="s"}': "1+0x10 0+0x400"},
         ({'pagefleet_gateway_api_keys_valid{namespace="s"}': "0+0x400"},
          {'pagefleet_gateway_api_keys_valid{namespace="s"}': "1+0x400"}), at="26h", labels={"namespace": "s"}, interval="5m"),
    Case("PagefleetBatchesNotReady", {'pagefleet_batches_ready{namespace="s"}': "0+0x60"},
         ({'pagefleet_batches_ready{namespace="s"}': "1+0x60"},), labels={"namespace": "s"}),
    Case("PagefleetBatchesExpired", {'pagefleet_batches_ended_total{namespace="s",status="expired"}': "0+0x20 1+0x40"},
         ({'pagefleet_batches_ended_total{namespace="s",status="expired"}': "1+0x60",
           'pagefleet_batches_ended_total{namespace="s",status="completed"}': "0+1x60"},), labels={"namespace": "s"}),
)  # fmt: skip

CASES = (*COMPARED, *PAGES, *TICKETS)
