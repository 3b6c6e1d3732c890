"""Protects the pods of warm spares of other engines: whom they are made for, that replicas are the same with and without them, that
neither arguments nor variables of the spec take sleep away from a spare, and that a spare of an earlier operator's revision tells of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of
from support.virtual.spares import SpareCluster

from pagefleet_contract.engine_metrics import engine_from
from pagefleet_contract.names import ENGINE_ANNOTATION, SPARE_LABEL
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.manifests import retained
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.spare import spare_deployment
from pagefleet_operator.domain.runtimes.catalog import can_sleep
from pagefleet_operator.domain.runtimes.vllm import SLEEP

KEY = {"name": "s", "key": "k"}


def vllm(accelerator: str = "nvidia.com/gpu", spares: int = 1, **engine: Any) -> dict[str, Any]:
    return {
        "model": {"source": "pvc://w/m"},
        "engine": {"runtime": "vllm", "image": "x:1", **engine},
        "resources": {"accelerator": {"name": accelerator}} if accelerator else {},
        "scaling": {"min": 1, "max": 2, "warmSpares": spares},
    }


def pod(manifest: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    template = manifest["spec"]["template"]
    return template["spec"]["containers"][0], template["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("accelerator", "engine", "able"),
    [
        ("nvidia.com/gpu", {}, True),
        ("nvidia.com/mig-1g.10gb", {}, True),
        ("amd.com/gpu", {}, True),
        ("", {}, False),
        ("google.com/tpu", {}, False),
        ("nvidia.com/gpu", {"nodes": 2}, False),
        ("nvidia.com/gpu", {"apiKeySecretRef": KEY}, False),
        ("nvidia.com/gpu", {"disaggregation": {"prefill": {"replicas": 1}}}, False),
        ("nvidia.com/gpu", {"runtime": "sglang"}, False),
        ("", {"runtime": "pagefleet"}, True),
    ],
    ids=str,
)
def test_which_engines_can_sleep(accelerator: str, engine: dict[str, Any], able: bool) -> None:
    assert can_sleep(revision_spec(vllm(accelerator, **engine))) is able


def test_replicas_and_their_revision_are_the_same_with_spares() -> None:
    without, with_one = child_of(vllm(spares=0)), child_of(vllm(spares=1))
    assert without.revision == with_one.revision
    assert deployment(without, 1) == deployment(with_one, 1)
    engine, annotations = pod(deployment(with_one, 1))
    assert not {"VLLM_SERVER_DEV_MODE"} & {one["name"] for one in engine["env"]} and "sleep" not in str(annotations)
    assert not set(SLEEP.flags) & set(engine["args"])


def test_our_own_engine_is_a_spare_alone() -> None:
    manifest = spare_deployment(child_of(spec_of("minimal")), 1)
    assert [one["name"] for one in manifest["spec"]["template"]["spec"]["containers"]] == ["engine"]


def test_the_spec_takes_sleep_away_from_no_spare() -> None:
    given = vllm(args=["--no-enable-sleep-mode"], env=[{"name": "VLLM_SERVER_DEV_MODE", "value": "0"}])
    engine, _ = pod(spare_deployment(child_of(given), 1))
    assert engine["args"][-2:] == ["--no-enable-sleep-mode", "--enable-sleep-mode"]
    assert [one for one in engine["env"] if one["name"] == "VLLM_SERVER_DEV_MODE"] == [
        {"name": "VLLM_SERVER_DEV_MODE", "value": "1"}
    ]


def test_a_spare_of_an_earlier_operators_revision_tells_of_its_sleep() -> None:
    """It is like the replicas that it stands in for, whose templates stay as they were applied."""
    child = child_of(vllm())
    old = copy.deepcopy(deployment(child, 1))
    pod(old)[0]["image"] = "docker.io/vllm/vllm-openai:v0.31.0"
    engine, annotations = pod(spare_deployment(child, 1, retained.templates(old)))
    told = engine_from(annotations[ENGINE_ANNOTATION])
    assert engine["image"].endswith("v0.31.0") and told.metrics is not None
    assert told.metrics.sleeping == SLEEP.metric and told.metrics.waiting


class Moving(SpareCluster):
    def spared(self) -> bool:
        assert self.plan is not None
        return any(SPARE_LABEL in child["metadata"]["labels"] for child in self.plan.children)  # type: ignore[index]


def test_a_stable_revision_whose_engine_cannot_sleep_has_no_spares_until_the_next_one_is_stable() -> None:
    made = Moving(1, 0)
    made.request(**vllm(spares=0, runtime="sglang"))
    made.serving()
    before = made.status.stable
    made.request(**vllm(spares=1))
    made.tick()
    while made.status.stable == before:
        assert not made.spared()
        made.act("promote")
    made.until(lambda _: made.spared())
