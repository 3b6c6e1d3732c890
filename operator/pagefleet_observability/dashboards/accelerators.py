"""Rows about accelerators: those of one service, where DCGM's exporter is scraped; those of all Neuron instances."""

from __future__ import annotations

from pagefleet_observability.dashboards.panel import Panel, Row
from pagefleet_observability.rules.accelerators import CORE_BUSY, CORE_MEMORY, LEFT, MEMORY, UTILISATION

OF = 'namespace="$namespace",service="$service",revision=~"$revision"'


GPUS = Row(
    "GPUs (DCGM exporter)",
    (
        Panel(
            "Utilisation",
            ((f"{UTILISATION}{{{OF}}}", "{{revision}}"),),
            "Share of the time in which the GPUs of a revision compute; the mean of its replicas.",
            unit="percentunit",
        ),
        Panel(
            "Memory used",
            ((f"{MEMORY}{{{OF}}}", "{{revision}}"),),
            "Of the fullest GPU of a revision. An engine reserves its KV pages when it starts.",
            unit="percentunit",
        ),
        Panel("Memory left", ((f"{LEFT}{{{OF}}}", "{{pod}}"),), "Of the fullest GPU of each replica.", unit="mbytes"),
    ),
)

NEURON = Row(
    "Neuron (neuron-monitor)",
    (
        Panel(
            "Utilisation",
            ((f"avg by (instance_id) ({CORE_BUSY})", "{{instance_id}}"),),
            "Mean of an instance's NeuronCores. neuron-monitor names no pod.",
            unit="percentunit",
            width=12,
        ),
        Panel(
            "Device memory used",
            ((f'sum by (instance_id) ({CORE_MEMORY}{{memory_location="neuron_device"}})', "{{instance_id}}"),),
            "Of all runtimes of an instance.",
            unit="bytes",
            width=12,
        ),
    ),
)
