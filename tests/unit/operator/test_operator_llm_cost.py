"""Protects the cost of models under OpenCost's names: by model, revision, namespace, service and team, with the prices that its
method `multiplier` gives to tokens of prompts and of answers; series end with their revision and with the service."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.virtual.cluster import Cluster

from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.web.own_llm_cost_metrics import LLMCostMetrics, prices
from pagefleet_operator.web.own_metrics import Metrics

LABELS = {"model_name": "smollm2", "namespace": "ns", "service": "chat", "team": "search", "cost_basis": "allocation"}


class Page:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.metrics = LLMCostMetrics(self._registry)

    def series(self, name: str) -> dict[tuple[str, str], float]:
        """By revision and phase. Every series has the labels of LABELS."""
        found = {}
        for family in text_string_to_metric_families(generate_latest(self._registry).decode()):
            for one in family.samples:
                if one.name == name:
                    assert LABELS.items() <= one.labels.items()
                    found[one.labels["model_version"], one.labels.get("phase", "")] = one.value
        return found


def service(accelerators: int = 1) -> Cluster:
    cluster = Cluster(1)
    cluster.spec |= {"cost": {"perAcceleratorHour": 1.8}, "owner": {"team": "search"}, "scaling": {"min": 2, "max": 2}}
    cluster.spec["resources"]["accelerator"]["count"] = accelerators
    cluster.serving()
    cluster.until(lambda status: all(pod.ready for pod in cluster.observe().revisions[status.stable].pods))
    return cluster


def busy(observation: Observation, prompt: float | None, generated: float | None) -> Observation:
    """The same with so many tokens a second on each pod."""
    revisions = {
        name: replace(reading, pods=tuple(
            replace(pod, load=replace(pod.load or EngineLoad(), tokens=generated, prompt_tokens=prompt))
            for pod in reading.pods
        ))
        for name, reading in observation.revisions.items()
    }  # fmt: skip
    return replace(observation, revisions=revisions)


def test_a_generated_token_costs_as_much_as_two_and_a_half_of_a_prompt() -> None:
    found = prices(3.6, 500.0, 200.0)
    read, written = found["prompt", "multiplier"], found["generation", "multiplier"]
    assert written == pytest.approx(2.5 * read)
    assert (500 * read + 200 * written) * 3600 / 1e6 == pytest.approx(3.6), "all of the cost, and no more"
    assert found["", ""] == pytest.approx(3.6 / 3600 / 700 * 1e6)


@pytest.mark.parametrize(("prompt", "generated"), [(None, 5.0), (5.0, None), (0.0, 0.0)])
def test_without_tokens_there_is_no_price_of_them(prompt: float | None, generated: float | None) -> None:
    assert prices(3.6, prompt, generated) == {}


def test_a_service_shows_what_its_revision_costs() -> None:
    cluster, page = service(accelerators=2), Page()
    plan = cluster.plan
    assert plan is not None
    page.metrics.planned(busy(cluster.observe(), 250.0, 100.0), plan)
    stable = cluster.status.stable
    assert page.series("llm_total_cost") == {(stable, ""): pytest.approx(2 * 2 * 1.8)}
    million = page.series("llm_cost_per_million_tokens")
    assert set(million) == {(stable, ""), (stable, "prompt"), (stable, "generation")}
    assert million[stable, ""] == pytest.approx(7.2 / 3600 / 700 * 1e6)


def test_a_canary_has_a_cost_of_its_own_and_both_go() -> None:
    cluster, page = service(), Page()
    stable = cluster.status.stable
    cluster.edit(9)
    cluster.spec["resources"] = {**cluster.spec["resources"], "accelerator": {"name": "nvidia.com/gpu", "count": 4}}
    cluster.until(lambda _: cluster.weight() > 0)
    canary, plan = cluster.status.canary, cluster.plan
    assert plan is not None
    page.metrics.planned(cluster.observe(), plan)
    costs = page.series("llm_total_cost")
    assert set(costs) == {(stable, ""), (canary, "")}
    ready = sum(pod.ready for pod in cluster.observe().revisions[canary].pods)
    assert costs[canary, ""] == pytest.approx(ready * 4 * 1.8)
    both = Metrics()
    both.load.planned(cluster.observe(), plan)
    shown = re.search(r"^pagefleet_cost_per_hour\{.*\} (.*)$", both.text().decode(), re.M)
    assert shown is not None and float(shown[1]) == pytest.approx(sum(costs.values())), "each at its own price"
    page.metrics.planned(replace(cluster.observe(), revisions={stable: cluster.observe().revisions[stable]}), plan)
    assert set(page.series("llm_total_cost")) == {(stable, "")}
    page.metrics.forget("ns", "chat")
    assert page.series("llm_total_cost") == {}


def test_without_a_price_nothing_is_exported() -> None:
    cluster, page = Cluster(2), Page()
    cluster.serving()
    assert cluster.plan is not None
    page.metrics.planned(busy(cluster.observe(), 1.0, 1.0), cluster.plan)
    assert page.series("llm_total_cost") == {}
