"""Protects the next version of the CRD: served beside the stored one behind a flag, it may be written and read by users
while the operator works by the old name; taken away again, nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml
from faults.operator_process import Operator
from faults.runs import Ground
from faults.story import NAME, Story, quiet

from pagefleet_local.fleet.kubectl import until
from pagefleet_operator import crd
from pagefleet_operator.kube.client import ApiError

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservices.pagefleet.io"
NEXT, NAMESPACE = "/apis/pagefleet.io/v1beta1", "versions"


async def serve(ground: Ground, *also: str) -> None:
    """Put the CRD in force, and wait until the API server serves just these versions."""
    document = yaml.safe_load(crd.rendered(*also))
    definition = await ground.api.get(DEFINITION)
    document["metadata"]["resourceVersion"] = definition["metadata"]["resourceVersion"]
    await ground.api.replace(DEFINITION, document)

    async def served() -> bool:
        try:
            await ground.api.get(f"{NEXT}/inferenceservices")
        except ApiError as error:
            return error.status == 404 and not also
        return bool(also)

    await until(served, timeout=30, what=f"versions beside the stored one: {also}")


@pytest_asyncio.fixture(loop_scope="session")
async def story(ground: Ground) -> AsyncIterator[Story]:
    async with Operator(ground.layout, ground.folder, NAMESPACE, 18950) as operator:
        await until(operator.ready, timeout=90, what="the operator is ready")
        yield Story(ground.api, operator)
    await serve(ground)


async def test_a_service_of_the_next_version_is_served_and_stays(ground: Ground, story: Story) -> None:
    await serve(ground, "v1beta1")
    await ground.api.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )
    spec = {
        "model": {"source": "file:///model"},
        "resources": {"cpu": "10m", "memory": "16Mi"},
        "scaling": {"min": 1, "max": 1},
        "rollout": {"steps": [{"weight": 50}], "guard": {}},
    }
    path = f"{NEXT}/namespaces/{NAMESPACE}/inferenceservices"
    document = {
        "apiVersion": "pagefleet.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": spec,
    }
    await ground.api.create(path, document)
    await story.until("Ready", lambda v: v.is_true("Ready") and quiet(v))
    document = await ground.api.get(f"{path}/{NAME}")
    assert document["apiVersion"] == "pagefleet.io/v1beta1"
    assert document["status"]["stable"]
    pods = {key: item["metadata"]["uid"] for key, item in (await story.state()).items() if key.startswith("Pod/")}
    await ground.api.merge(f"{path}/{NAME}", {"spec": {"scaling": {"min": 2, "max": 2}}})
    await story.until("two replicas", lambda v: v.status.get("replicas") == 2 and quiet(v))
    await serve(ground)
    await story._edit(lambda spec: spec["scaling"].update(min=1, max=3))
    await story.until("observed", quiet)
    after = {key: item["metadata"]["uid"] for key, item in (await story.state()).items() if key.startswith("Pod/")}
    assert pods.items() <= after.items(), "no version change replaced a pod"
    await story._delete()
