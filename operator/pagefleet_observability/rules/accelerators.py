"""Memory and utilisation of accelerators, by the names of their vendors' exporters.

NVIDIA's DCGM exporter (etc/default-counters.csv of its repository) names the pod that holds a GPU. Prometheus calls these labels
`exported_pod` and `exported_namespace` where the scrape does not honour an exporter's labels, as that of the GPU Operator; both forms are
read. The service and the revision of a pod come from its engine's own metrics. Prefill pods have neither there, so they are left out.

AWS's neuron-monitor names no pod: its numbers are of an instance and a runtime, so they are on the dashboard of the fleet only.
"""

from __future__ import annotations

from pagefleet_contract.engine_metrics import RUNNING
from pagefleet_observability.rules.engines import level
from pagefleet_observability.rules.recordings import BY, OF_REVISIONS
from pagefleet_observability.rules.rule import Alert, Group, Recording, Severity

GPU_BUSY, GPU_USED, GPU_FREE = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"  # percent, MiB, MiB
GPU_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"  # a ratio, also of a part of a GPU (MIG)
CORE_BUSY = "neuroncore_utilization_ratio"
CORE_MEMORY = "neuron_runtime_memory_used_bytes"  # memory_location: host or neuron_device
UTILISATION = "revision:pagefleet_accelerator_utilisation:ratio"
LEFT = "pod:pagefleet_accelerator_memory_free:mebibytes"
MEMORY = "revision:pagefleet_accelerator_memory_used:ratio"
FULL, IDLE = 0.98, 0.05
NAME = "{{ $labels.namespace }}/{{ $labels.service }}"
SHARE = "{{ $value | humanizePercentage }}"


def of_pods(metric: str) -> str:
    """A metric of the exporter with the workload's pod and namespace in the labels `pod` and `namespace`."""
    named = metric
    for label in ("pod", "namespace"):
        named = f'label_replace({named}, "{label}", "$1", "exported_{label}", "(.+)")'
    return named


def _each(expr: str, aggregation: str, by: str = BY) -> str:
    """By service and revision, of an expression that has one series for each pod."""
    place = f"clamp_max(count by (pod, {BY}) ({level(RUNNING, OF_REVISIONS)}), 1)"
    return f"{aggregation} by ({by}) ({expr} * on (namespace, pod) group_left (service, revision) {place})"


def by_pod(expr: str) -> str:
    return f"avg by (namespace, pod) ({expr})"


BUSY = f"({by_pod(of_pods(GPU_ACTIVE))} or {by_pod(of_pods(GPU_BUSY))} / 100)"
USED = f"(max by (namespace, pod) ({of_pods(GPU_USED)} / ({of_pods(GPU_USED)} + {of_pods(GPU_FREE)})))"
ACCELERATORS = Group(
    "pagefleet-accelerators",
    (
        Recording(UTILISATION, _each(BUSY, "avg")),
        Recording(MEMORY, _each(USED, "max")),
        Recording(LEFT, _each(f"min by (namespace, pod) ({of_pods(GPU_FREE)})", "min", f"pod, {BY}")),
        Alert(
            "PagefleetAcceleratorMemoryFull",
            Severity.TICKET,
            f"{MEMORY} > {FULL}",
            "15m",
            f"Revision {{{{ $labels.revision }}}} of {NAME}: {SHARE} of a GPU's memory are used",
            "An engine reserves its KV pages when it starts. Above 98 % the next allocation beside them may end it.",
        ),
        Alert(
            "PagefleetAcceleratorIdle",
            Severity.TICKET,
            f"{UTILISATION} < {IDLE}",
            "2h",
            f"Revision {{{{ $labels.revision }}}} of {NAME}: its GPUs compute {SHARE} of the time",
            "They have been below 5 % for two hours: there are more replicas than the load needs, or an engine hangs.",
        ),
    ),
)
