"""Protects models that lie in images, and the fields of pods that an older API server drops: where a model is mounted, that a dry run
finds out what is stored, and that no pods are made where something they need would be dropped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from support.golden_manifests import child_of, spec_of
from support.virtual.cluster import Cluster

from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.manifests import pod_fields
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.pod_fields import FIELDS, IMAGE_VOLUMES
from pagefleet_operator.domain.runtimes.uris import images, in_pod
from pagefleet_operator.domain.spec.parse import SpecErrors, parse
from pagefleet_operator.kube import versions
from pagefleet_operator.kube.client import ApiError
from pagefleet_operator.kube.versions import Versions

DIGEST = "sha256:" + "0123456789abcdef" * 4
SOURCE = f"oci://registry.example:5000/models/llama:8b@{DIGEST}"
MOUNT = "/model-images/0123456789abcdef"
Answer = Callable[[dict[str, Any]], dict[str, Any]]


def errors(source: str) -> list[str]:
    parsed = parse({"model": {"source": source}})
    return [error.field for error in parsed.errors] if isinstance(parsed, SpecErrors) else []


@pytest.mark.parametrize(
    ("source", "path"),
    [
        (SOURCE, f"file://{MOUNT}"),
        (f"{SOURCE}/models/8b", f"file://{MOUNT}/models/8b"),
        (f"{SOURCE}/a@b/model.gguf", f"file://{MOUNT}/a@b/model.gguf"),
        (f"oci://llama@{DIGEST}", f"file://{MOUNT}"),
    ],
)
def test_the_path_of_a_model_is_below_its_image(source: str, path: str) -> None:
    assert errors(source) == []
    assert in_pod(source, revision_spec({"model": {"source": source}}).model) == path


@pytest.mark.parametrize(
    "source",
    [
        "oci://registry.example/llama",
        "oci://registry.example/llama:8b",
        f"oci://@{DIGEST}",
        f"{SOURCE[:-1]}",
        f"{SOURCE}0",
        f"{SOURCE}@{DIGEST}",
        SOURCE.replace("sha256", "sha512"),
    ],
)
def test_an_image_needs_its_digest(source: str) -> None:
    assert errors(source) == ["spec.model.source"]


def test_images_of_one_digest_are_mounted_once() -> None:
    elsewhere = f"oci://mirror.example/llama@{DIGEST}/adapter"
    model = revision_spec(
        {"model": {"source": f"{SOURCE}/m", "adapters": [{"name": "a", "source": elsewhere}] * 2}}
    ).model
    assert len(images(model)) == 1
    pod = deployment(child_of(spec_of("image")), 1)["spec"]["template"]["spec"]
    mounts = [one["mountPath"] for one in pod["containers"][0]["volumeMounts"]]
    assert len(set(mounts)) == len(mounts)


class Server:
    """An API server that answers a dry run by `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.asked = answer, 0

    async def create(self, path: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
        assert query == {"dryRun": "All"}, "nothing may be written"
        assert path == "/apis/apps/v1/namespaces/team-a/deployments"
        self.asked += 1
        return self.answer(copy.deepcopy(body))


def without_sources(body: dict[str, Any]) -> dict[str, Any]:
    """As Kubernetes 1.20 stores a volume whose type it does not know: as an empty folder."""
    for volume in body["spec"]["template"]["spec"]["volumes"]:
        volume.pop("image")
        volume["emptyDir"] = {}
    return body


def mirrored(body: dict[str, Any]) -> dict[str, Any]:
    """As a webhook does that replaces registries, on a server that adds defaults."""
    pod = body["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "added", "emptyDir": {}}, *pod["volumes"]]
    pod["volumes"][1]["image"]["reference"] = "mirror.example/none"
    return {**body, "status": {}}


def raises(error: Exception) -> Answer:
    def answer(_: dict[str, Any]) -> dict[str, Any]:
        raise error

    return answer


def refuses(status: int, message: str) -> Answer:
    return raises(ApiError(status, message))


@pytest.mark.parametrize(
    ("answer", "dropped"),
    [
        (lambda body: body, False),
        (mirrored, False),
        (without_sources, True),
        (refuses(422, "spec.template.spec.volumes[0]: Required value: must specify a volume type"), True),
        (refuses(403, "a webhook denied the request"), False),
        (raises(TimeoutError()), False),
        (raises(aiohttp.ServerDisconnectedError()), False),
    ],
)
async def test_a_dry_run_finds_out_what_the_server_stores(answer: Answer, dropped: bool) -> None:
    asked = Versions(Server(answer))  # type: ignore[arg-type]
    assert await asked.dropped([IMAGE_VOLUMES], "team-a") == ({IMAGE_VOLUMES} if dropped else frozenset())


async def test_the_server_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(versions.time, "monotonic", lambda: now)
    server = Server(without_sources)
    asked = Versions(server)  # type: ignore[arg-type]
    for _ in range(3):
        assert await asked.dropped([IMAGE_VOLUMES], "team-a")
    server.answer, now = (lambda body: body), now + 31
    for _ in range(3):
        assert not await asked.dropped([IMAGE_VOLUMES], "team-a")
    assert server.asked == 2


async def test_a_webhook_that_hangs_delays_one_decision_in_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision about such a service waited 15 s for the dry run and failed: no alert rolled it back. What was known holds."""
    now = 1000.0
    monkeypatch.setattr(versions.time, "monotonic", lambda: now)
    server = Server(raises(TimeoutError()))
    asked = Versions(server)  # type: ignore[arg-type]
    for _ in range(3):
        assert not await asked.dropped([IMAGE_VOLUMES], "team-a")
    assert server.asked == 1
    server.answer, now = without_sources, now + 31
    assert await asked.dropped([IMAGE_VOLUMES], "team-a")
    server.answer, now = raises(TimeoutError()), now + 31
    for _ in range(3):
        assert await asked.dropped([IMAGE_VOLUMES], "team-a")
    assert server.asked == 3


def test_only_specs_that_need_a_field_ask_for_it() -> None:
    plain, image = {"model": {"source": "file:///m"}}, {"model": {"source": SOURCE}}
    assert pod_fields.needed_by(plain, {}) == frozenset()
    assert pod_fields.needed_by(image, {}) == {IMAGE_VOLUMES}
    assert pod_fields.needed_by({"model": {**image["model"], "oci": "Fetch"}}, {}) == frozenset()
    assert pod_fields.needed_by(plain, {"revisions": [{"hash": "a", "spec": image}]}) == {IMAGE_VOLUMES}
    for wrong in (None, 1, [], {"model": {"source": 5, "adapters": [{"source": {}}, 7]}}):
        assert pod_fields.needed_by(wrong, {"revisions": [wrong]}) == frozenset()


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_in_its_example(name: str) -> None:
    sent = pod_fields.example(name, "team-a")
    assert pod_fields.stored(sent["spec"], sent["spec"])
    bare = copy.deepcopy(sent["spec"])
    for part in FIELDS[name].pod:
        del bare["template"]["spec"][part]
    assert not pod_fields.stored(sent["spec"], bare)


def test_no_pods_start_without_their_model_and_a_condition_names_the_field() -> None:
    made = Cluster(1)
    made.spec["model"] = {"source": SOURCE}
    made.dropped = frozenset({IMAGE_VOLUMES})
    for _ in range(5):
        made.tick()
    for kind in ("Ready", "Degraded"):
        assert made.condition(kind).reason == "PodFieldDropped"
    assert "spec.model.source: this API server drops volumes[].image of pods" in made.condition("Degraded").message
    assert "Kubernetes 1.35" in made.condition("Degraded").message
    assert made.plan is not None
    assert made.plan.children == ()
    made.dropped = frozenset()
    made.until(lambda status: bool(status.traffic))
    assert made.condition("Degraded").status == "False"


def test_a_canary_whose_field_is_dropped_leaves_the_stable_alone() -> None:
    made = Cluster(1)
    stable = made.serving()
    made.dropped = frozenset({IMAGE_VOLUMES})
    made.request(model={"source": SOURCE})
    for _ in range(30):
        made.tick()
    assert made.plan is not None
    assert {child["metadata"]["labels"]["pagefleet.io/revision"] for child in made.plan.children} == {stable}  # type: ignore[index]
    assert (made.weights(), made.condition("Ready").status) == ({stable: 100}, "True")
    assert made.condition("Degraded").reason == "PodFieldDropped"
