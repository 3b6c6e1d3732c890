"""Objects that break the schema, among healthy ones (row 10): the CRD is opened for as long as it takes to store them, as
an older CRD or a restored backup might have. The test compares how long the neighbours' edits wait, before and beside them."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

from scale.measure import Measure, median, p99
from support.cluster.own_plane import OwnPlane

from pagefleet_local.fleet.kubectl import until
from pagefleet_operator.kube.client import ApiError

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservices.pagefleet.io"
SERVICES = "/apis/pagefleet.io/v1alpha1/namespaces/scale/inferenceservices"
MORE = 0.10  # of the neighbours' p99
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SPECS: tuple[Any, ...] = (
    {"model": 7, "scaling": "many", "rollout": [[]], "engine": {"args": {"a": 1}}},
    {"model": {"source": ["x"]}, "scaling": {"min": -5, "max": "no"}, "rollout": {"steps": [{"weight": "half"}] * 50}},
    {"model": None, "resources": {"memory": {"deep": {"er": [1, [2, [3]]]}}}},
)


async def store(plane: OwnPlane, count: int) -> None:
    """Open the CRD, store what it would refuse, and close it again."""
    definition = await plane.api.get(DEFINITION)
    closed = copy.deepcopy(definition["spec"])
    for version in definition["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"] = {"type": "object", "properties": {"spec": OPEN, "status": OPEN}}
        version.pop("subresources", None)  # otherwise a status would not be stored with its object
    await plane.api.replace(DEFINITION, definition)

    async def stored() -> bool:
        """Store the objects. They are refused until the API server uses the opened schema."""
        try:
            for number in range(count):
                await plane.api.create(SERVICES, _poisoned(number))
        except ApiError as error:
            return error.status == 409
        return True

    await until(stored, timeout=60, what="objects that break the schema are stored")
    present = await plane.api.get(DEFINITION)
    present["spec"] = closed
    await plane.api.replace(DEFINITION, present)


def _poisoned(number: int) -> dict[str, Any]:
    spec = SPECS[number % len(SPECS)]
    return {
        "apiVersion": "pagefleet.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": f"poisoned-{number}", "namespace": "scale"},
        "spec": spec,
        "status": {"traffic": "all", "revisions": 3, "conditions": [{"type": []}]},
    }


async def compare(
    plane: OwnPlane, count: int, edits: Callable[[int, int], Awaitable[list[float]]], each: int
) -> list[Measure]:
    """`edits(first, last)` edits these services and returns sorted seconds."""
    before = await edits(0, each)
    await store(plane, count)
    beside = await edits(each, 2 * each)
    return [
        Measure("edit decided, median", median(before), "s"),
        Measure("edit decided, p99", p99(before), "s"),
        Measure(f"edit decided beside {count} poisoned, median", median(beside), "s"),
        Measure(f"edit decided beside {count} poisoned, p99", p99(beside), "s", p99(before) * (1 + MORE)),
    ]
