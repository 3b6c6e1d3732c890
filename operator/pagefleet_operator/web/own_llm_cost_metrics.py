"""The cost of models under the names that OpenCost gives it (llm_total_cost, llm_cost_per_million_tokens), so that its
dashboards show our services: by model, version (our revision) and namespace, and besides by service and team.

Source: OpenCost's documentation of inference costs, version 1.121. Of its two bases we know `allocation`: what is held is paid,
busy or idle. Prices are those of spec.cost, in its currency. Prompt and generated tokens share the cost by OpenCost's method
`multiplier`: one generated token costs as much as 2.5 tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge

from pagefleet_operator.domain.scaling.load import sample
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import Plan

TOTAL, PER_MILLION = "llm_total_cost", "llm_cost_per_million_tokens"
OWNER = ("model_name", "model_version", "namespace", "service", "team", "cost_basis")
BASIS, METHOD = "allocation", "multiplier"
OUTPUT_WEIGHT = 2.5  # OpenCost's default ratio of the prices of an output and an input token
SECONDS_PER_HOUR, MILLION = 3600, 1e6
Labels = tuple[str, ...]


class LLMCostMetrics:
    """Gauges whose series exist while the cost of a revision is known, and its tokens for the price of a million."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            TOTAL: Gauge(
                TOTAL,
                "What a revision's ready replicas, warm spares and prefill pods cost an hour",
                OWNER,
                registry=registry,
            ),
            PER_MILLION: Gauge(
                PER_MILLION,
                "What a million tokens cost now: phase prompt, generation, or empty for both together",
                (*OWNER, "phase", "allocation_method"),
                registry=registry,
            ),
        }
        self._shown: dict[tuple[str, str], set[tuple[str, Labels]]] = {}

    def planned(self, observation: Observation, plan: Plan) -> None:
        """Export the costs at a decision."""
        key, values = (observation.namespace, observation.name), dict(_values(observation, plan))
        for (name, labels), value in values.items():
            self._gauges[name].labels(*labels).set(value)
        self._drop(key, self._shown.get(key, set()) - set(values))
        self._shown[key] = set(values)

    def forget(self, namespace: str, service: str) -> None:
        """Remove the series of a deleted service."""
        self._drop((namespace, service), self._shown.pop((namespace, service), set()))

    def _drop(self, key: tuple[str, str], series: set[tuple[str, Labels]]) -> None:
        for name, labels in series:
            self._gauges[name].remove(*labels)


def _values(observation: Observation, plan: Plan) -> Iterator[tuple[tuple[str, Labels], float]]:
    for revision, price in plan.replica_costs.items():
        reading = observation.revisions.get(revision)
        if reading is None:
            continue
        now = sample(reading, 0.0)
        asleep = sum(1 for spare in reading.spares if not spare.pod.ready and (spare.loaded or spare.asleep))
        held = now.serving + asleep + reading.prefill_ready
        if not held:
            continue
        cost = held * price
        labels = (plan.model, revision, observation.namespace, observation.name, plan.owner.team, BASIS)
        yield (TOTAL, labels), cost
        if now.fresh != now.serving:
            continue
        for (phase, method), each in prices(cost, now.load.prompt_tokens, now.load.tokens).items():
            yield (PER_MILLION, (*labels, phase, method)), each


def prices(cost: float, prompt: float | None, generated: float | None) -> dict[tuple[str, str], float]:
    """What a million tokens cost, by phase and method, at a `cost` for an hour and so many tokens a second."""
    if prompt is None or generated is None or prompt + generated <= 0:
        return {}
    unit = cost / SECONDS_PER_HOUR * MILLION
    read = unit / (prompt + OUTPUT_WEIGHT * generated)
    return {
        ("", ""): unit / (prompt + generated),
        ("prompt", METHOD): read,
        ("generation", METHOD): OUTPUT_WEIGHT * read,
    }
