"""Protects other engines under the operator: what a runtime cannot do is refused by its field, images and slots are those
of the runtime and its accelerator, and a signal that an engine does not tell stays unknown in scaling instead of zero."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of

from pagefleet_contract.engine_metrics import Engine, engine_of
from pagefleet_contract.names import ENGINE_ANNOTATION
from pagefleet_engine import flags
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.runtimes.catalog import REGISTRY, slots_of
from pagefleet_operator.domain.scaling.load import is_fresh, totals
from pagefleet_operator.domain.spec.parse import SpecErrors, parse
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading


def errors(spec: object) -> dict[str, str]:
    found = parse(spec)
    return {error.field: error.message for error in found.errors} if isinstance(found, SpecErrors) else {}


def changed(name: str, path: str, value: object) -> dict[str, Any]:
    """A golden spec with one field set."""
    spec = place = copy.deepcopy(spec_of(name))
    *steps, last = path.split(".")
    for step in steps:
        place = place.setdefault(step, {})
    place[last] = value
    return spec


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu", "sglang", "tgi", "custom"])
def test_the_golden_specs_are_accepted(name: str) -> None:
    assert errors(spec_of(name)) == {}


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("vllm", "model.source", "python://package/model.gguf"),
        ("vllm", "model.quantization", "int8"),
        ("vllm", "engine.limits.promptTokens", 100),
        ("vllm", "engine.limits.answers", 2),
        ("vllm", "engine.kvCache.dtype", "float32"),
        ("vllm", "engine.port", 8001),
        ("vllm", "engine.metrics", {"waiting": "a", "running": "b"}),
        ("sglang", "model.quantization", "int8"),
        ("sglang", "engine.limits.outputTokens", 100),
        ("sglang", "engine.kvCache.dtype", "float16"),
        ("tgi", "model.chatTemplate", {"configMapKeyRef": {"name": "a", "key": "b"}}),
        ("tgi", "engine.kvCache.pages", 100),
        ("tgi", "engine.scheduling.policy", "priority"),
        ("tgi", "engine.toolCallParser", "hermes"),
        ("custom", "model.speculation", {"method": "ngram"}),
        ("custom", "model.quantization", "fp8"),
        ("custom", "engine.scheduling.chunkTokens", 64),
        ("gpu", "engine.probes", {"readiness": "/"}),
    ],
)
def test_what_a_runtime_cannot_do_is_refused_by_its_field(name: str, path: str, value: object) -> None:
    assert set(errors(changed(name, path, value))) == {f"spec.{path}"}


def test_a_draft_model_is_refused_for_tgi() -> None:
    drafted = {"method": "draft", "model": "pvc://weights/small"}
    assert set(errors(changed("tgi", "model.speculation", drafted))) == {"spec.model.speculation.method"}


@pytest.mark.parametrize("name", ["minimal", "gpu"])
def test_an_eagle3_head_reaches_our_own_engine(name: str) -> None:
    told = changed(name, "model.speculation", {"method": "eagle3", "tokens": 3, "model": "pvc://weights/llama/eagle3"})
    assert errors(told) == {}
    (container,) = deployment(child_of(told), 1)["spec"]["template"]["spec"]["containers"]
    assert {
        "--speculation=eagle3", "--speculation-tokens=3", "--speculation-model=file:///models/weights/llama/eagle3",
    } <= set(container["args"])  # fmt: skip
    assert any(mount["mountPath"] == "/models/weights" for mount in container["volumeMounts"])


@pytest.mark.parametrize("name", ["vllm", "sglang", "tgi"])
def test_nobody_guesses_where_nobody_is_asked_to(name: str) -> None:
    told = changed(name, "model.speculation", {"method": "none", "tokens": 4})
    assert errors(told) == {}
    containers = deployment(child_of(told), 1)["spec"]["template"]["spec"]["containers"]
    assert "specul" not in str(containers)


@pytest.mark.parametrize(
    ("name", "flag", "field"),
    [
        ("vllm", "--gpu-memory-utilization=0.5", "spec.engine.kvCache.memoryFraction"),
        ("sglang", "--context-length=9", "spec.model.maxLength"),
        ("tgi", "--num-shard=2", "spec.resources.accelerator.count"),
        ("vllm", "--max-num-seqs=9", "spec.engine.scheduling.maxSequences"),
        ("vllm", "--max_num_seqs=9", "spec.engine.scheduling.maxSequences"),
        ("vllm", "--max_model_len=9", "spec.model.maxLength"),
        ("vllm", "--speculative-config.method=ngram", "spec.model.speculation"),
        ("vllm", "--spec-method=ngram", "spec.model.speculation"),
        ("vllm", "--device-memory-utilization=0.5", "spec.engine.kvCache.memoryFraction"),
        ("vllm", "-pp", "spec.engine.pipelineParallelSize"),
        ("sglang", "--pp-size=2", "spec.engine.pipelineParallelSize"),
        ("sglang", "--speculative-draft-model=/x", "spec.model.speculation.model"),
        ("tgi", "--max-input-length=9", "spec.engine.limits.promptTokens"),
        ("tgi", "-p", "-p is written by the operator"),
        ("pagefleet", "--max_model_len=9", "spec.model.maxLength"),
    ],
)
def test_a_flag_with_a_field_is_refused_in_args(name: str, flag: str, field: str) -> None:
    (message,) = errors(changed("minimal" if name == "pagefleet" else name, "engine.args", [flag])).values()
    assert field in message


def test_an_accelerator_without_an_image_needs_one() -> None:
    spec = changed("vllm", "resources.accelerator.name", "habana.ai/gaudi")
    assert set(errors(spec)) == {"spec.engine.image"}
    spec["engine"]["image"] = "registry.example/vllm-gaudi:1"
    assert errors(spec) == {}


@pytest.mark.parametrize("name", ["amd.com/gpu", "aws.amazon.com/neuron", "google.com/tpu", "habana.ai/gaudi"])
def test_our_engine_refuses_accelerators_that_it_cannot_use(name: str) -> None:
    spec = {"model": {"source": "file:///m"}, "resources": {"accelerator": {"name": name}}}
    assert set(errors(spec)) == {"spec.engine.image"}


@pytest.mark.parametrize(
    ("runtime", "accelerator", "image"),
    [
        ("vllm", "nvidia.com/gpu", "docker.io/vllm/vllm-openai:"),
        ("vllm", "amd.com/gpu", "docker.io/vllm/vllm-openai-rocm:"),
        ("vllm", "google.com/tpu", "docker.io/vllm/vllm-tpu:"),
        ("tgi", "habana.ai/gaudi", "ghcr.io/huggingface/text-generation-inference:"),
        ("sglang", "nvidia.com/gpu", "docker.io/lmsysorg/sglang:"),
    ],
)
def test_the_image_is_the_runtimes_for_the_accelerator(runtime: str, accelerator: str, image: str) -> None:
    spec = {
        "model": {"source": "pvc://weights/m"},
        "engine": {"runtime": runtime},
        "resources": {"accelerator": {"name": accelerator, "count": 1}},
    }
    container = deployment(child_of(spec), 1)["spec"]["template"]["spec"]["containers"][0]
    assert container["image"].startswith(image)
    assert container["resources"]["limits"][accelerator] == "1"


def test_custom_needs_metrics_when_its_replicas_follow_the_load() -> None:
    spec = spec_of("custom") | {"scaling": {"min": 1, "max": 3}}
    assert errors(spec) == {}
    del spec["engine"]["metrics"]
    assert set(errors(spec)) == {"spec.engine.metrics"}
    assert errors(spec | {"scaling": {"min": 2, "max": 2}}) == {}


def test_the_guard_judges_what_the_runtime_tells() -> None:
    guard = {"guard": {"latency": [{"signal": "itl"}, {"signal": "queue"}]}}
    assert errors(spec_of("vllm") | {"rollout": guard}) == {}
    for name in ("tgi", "custom"):
        assert set(errors(spec_of(name) | {"rollout": guard})) == {"spec.rollout.guard.latency"}
    told = {
        "guard": {"latency": [{"signal": "e2e", "source": "Engine"}], "errors": {"maxRate": "1%", "source": "Engine"}}
    }
    for name in ("vllm", "tgi", "minimal"):
        assert errors(spec_of(name) | {"rollout": told}) == {}
    assert set(errors(spec_of("sglang") | {"rollout": told})) == {"spec.rollout.guard.errors.source"}
    assert errors(spec_of("custom") | {"rollout": told}) == {}
    mute = changed("custom", "engine.metrics", {"waiting": "a", "running": "b"}) | {"rollout": told}
    assert set(errors(mute)) == {"spec.rollout.guard.latency", "spec.rollout.guard.errors.source"}


def test_gateway_api_routes_lead_to_one_port() -> None:
    told = {"traffic": {"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": [{"name": "g"}]}}}
    assert set(errors(spec_of("custom") | told)) == {"spec.engine.port"}
    assert errors(changed("custom", "engine.port", 8000) | told) == {}


def test_custom_selectors_are_checked() -> None:
    spec = changed("custom", "engine.metrics.waiting", "queue{a=~'.*'}")
    assert set(errors(spec)) == {"spec.engine.metrics.waiting"}


def test_a_users_variable_replaces_the_runtimes() -> None:
    container = deployment(child_of(spec_of("custom")), 1)["spec"]["template"]["spec"]["containers"][0]
    assert [entry["value"] for entry in container["env"] if entry["name"] == "HF_HOME"] == ["/tmp/elsewhere"]


def test_slots_are_known_where_they_are_said() -> None:
    assert slots_of(revision_spec({"engine": {"runtime": "vllm"}})) is None
    gpus: dict[str, Any] = {"accelerator": {"name": "nvidia.com/gpu", "count": 1}}
    assert slots_of(revision_spec({"resources": {}})) == flags.BY_NAME["--max-num-seqs"].defaults["cpu"] == 64
    assert slots_of(revision_spec({"resources": gpus})) == flags.BY_NAME["--max-num-seqs"].defaults["cuda"] == 256
    assert slots_of(revision_spec({"resources": {"accelerator": {"name": "example.com/npu"}}})) is None
    assert slots_of(revision_spec({"engine": {"runtime": "vllm", "args": ["--max-num-seqs", "7"]}})) == 7
    assert slots_of(revision_spec({"engine": {"runtime": "vllm", "args": ["--max_num_seqs=8"]}})) == 8
    assert slots_of(revision_spec({"engine": {"runtime": "sglang", "args": ["--max-running-requests=9"]}})) == 9
    assert slots_of(revision_spec({"engine": {"runtime": "custom", "scheduling": {"maxSequences": 3}}})) == 3


def test_an_adapter_lies_at_the_path_that_the_spec_says_whatever_signs_are_in_it() -> None:
    """vLLM splits NAME=PATH at every =, and takes one with a comma for JSON."""
    paths = ("/plain", "/date=2026-01-31/x", "/a,b", "/a=b,c")
    adapters = [{"name": f"a{number}", "source": f"file://{path}"} for number, path in enumerate(paths)]
    args = REGISTRY["vllm"].launch(child_of(changed("vllm", "model.adapters", adapters)), "1").args
    modules = args[args.index("--lora-modules") + 1 :]
    read = [
        dict(zip(("name", "path"), one.split("="), strict=True)) if one[0] != "{" else json.loads(one)
        for one in modules
    ]
    assert read == [{"name": f"a{number}", "path": path} for number, path in enumerate(paths)]
    assert modules[0] == "a0=/plain"


def test_a_step_of_sglang_has_room_for_requests_of_every_adapter_and_of_the_model_itself() -> None:
    """It counts a request without an adapter as one of its own: with no room for it, those of an adapter wait until all of the model's have
    ended, and the other way about."""
    adapters = [{"name": name, "source": f"file:///{name}"} for name in ("a", "b")]
    args = REGISTRY["sglang"].launch(child_of(changed("sglang", "model.adapters", adapters)), "1").args
    assert "--max-loras-per-batch=3" in args


def test_tgi_takes_as_many_requests_as_it_may_run_and_more_that_wait() -> None:
    """Of its own accord it answers 429 from the 129th request on, however many sequences it may run."""
    flag, scheduled = "--max-concurrent-requests=", changed("tgi", "engine.scheduling.maxSequences", 256)

    def written(spec: dict[str, Any]) -> list[str]:
        return [one for one in REGISTRY["tgi"].launch(child_of(spec), "1").args if one.startswith(flag)]

    assert written(scheduled) == [f"{flag}384"]
    own = {**scheduled, "engine": {**scheduled["engine"], "args": ["--max-concurrent-requests", "500"]}}
    assert written(own) == [], "TGI refuses a flag that stands twice"
    told = {
        **scheduled,
        "engine": {**scheduled["engine"], "env": [{"name": "MAX_CONCURRENT_REQUESTS", "value": "500"}]},
    }
    assert written(told) == []


def test_a_pods_annotation_says_what_its_engine_is() -> None:
    metadata = deployment(child_of(spec_of("custom")), 1)["spec"]["template"]["metadata"]
    found = engine_of({"metadata": metadata})
    assert (found.port, found.metrics and found.metrics.path) == (9090, "/telemetry")
    assert engine_of({"metadata": {}}) == Engine()
    for text in ("", "[]", "{", '{"port": 1, "metrics": {"waiting": "a b", "running": "c"}}'):
        assert engine_of({"metadata": {"annotations": {ENGINE_ANNOTATION: text}}}).metrics is None


def pod(**known: Any) -> PodReading:
    return PodReading("p", True, False, 0.0, 0.0, load=EngineLoad(**known), load_age=0.0)


def test_pages_that_an_engine_does_not_tell_are_unknown_and_not_free() -> None:
    told = pod(waiting=3, running=2)
    assert is_fresh(told)
    assert not is_fresh(replace(told, load=None))
    assert not is_fresh(pod(waiting=3, running=2, kv_pages_total=100))
    latest = totals(RevisionReading("a", 1, (told,)), 1.0).latest
    assert (latest.fresh, latest.load.waiting, latest.load.kv_share_free) == (1, 3, None)
