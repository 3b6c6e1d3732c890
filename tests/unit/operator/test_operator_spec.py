"""Protects bad input: any JSON gives a Spec or errors that name fields; what has no behaviour yet is refused by name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden_manifests import child_of
from support.sample_service import sample

from pagefleet_operator.domain.base.revision import revision_hash
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors, parse
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.status import Status

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
SAMPLES = Path(__file__).resolve().parents[3] / "manifests/samples"
MINIMAL: dict[str, Any] = {"model": {"source": "file:///m"}}


def merged(*path_and_value: Any) -> dict[str, Any]:
    *path, last, value = path_and_value
    spec = copy.deepcopy(MINIMAL)
    place = spec
    for name in path:
        place = place.setdefault(name, {})
    place[last] = value
    return spec


def errors(spec: object) -> dict[str, str]:
    parsed = parse(spec)
    return {e.field: e.message for e in parsed.errors} if isinstance(parsed, SpecErrors) else {}


@settings(max_examples=300)
@given(JSON)
def test_any_json_is_a_spec_or_errors_with_fields(value: object) -> None:
    parsed = parse(value)
    assert isinstance(parsed, Spec) or all(error.field.startswith("spec") for error in parsed.errors)


@settings(max_examples=300)
@given(st.data())
def test_any_json_in_any_place_of_a_good_spec(data: st.DataObject) -> None:
    spec = sample()["spec"]
    place = spec
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    assert isinstance(parse(spec), Spec | SpecErrors)


@settings(max_examples=300)
@given(JSON)
def test_any_json_is_a_status(value: object) -> None:
    assert isinstance(codec.load(value), Status)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_shipped_sample_is_good(path: Path) -> None:
    documents = [one for one in yaml.safe_load_all(path.read_text()) if one["kind"] == "InferenceService"]
    assert documents
    assert [error for one in documents for error in errors(one["spec"]).items()] == []


def test_the_sample_is_good_and_its_defaults_are_filled_in() -> None:
    parsed = parse(sample()["spec"])
    assert isinstance(parsed, Spec), parsed
    assert [(step.weight, step.hold) for step in parsed.rollout.steps] == [(10, 20.0), (50, 20.0)]
    small = parse(MINIMAL)
    assert isinstance(small, Spec)
    assert (small.scaling.min, small.scaling.max, small.scaling.target.queue_depth) == (1, 1, 4.0)
    assert [step.weight for step in small.rollout.steps] == [10, 50]
    assert small.rollout.guard.latency[0].signal == "ttft"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("model", "speculation"), {"method": "medusa"}, "spec.model.speculation.method"),
        (("model", "speculation"), {"tokens": 4}, "spec.model.speculation.method"),
        (("model", "speculation"), {"method": "ngram", "tokens": 17}, "spec.model.speculation.tokens"),
        (("model", "speculation"), {"method": "ngram", "tokens": 0}, "spec.model.speculation.tokens"),
        (("model", "speculation"), {"method": "ngram", "model": "file:///d"}, "spec.model.speculation.model"),
        (("model", "speculation"), {"method": "draft"}, "spec.model.speculation.model"),
        (("model", "speculation"), {"method": "draft", "model": "/d"}, "spec.model.speculation.model"),
        (("model", "adapters"), [{"name": "a", "source": "hf://a/b"}], "spec.model.adapters[0].source"),
        (("model", "adapters"), [{"name": "a", "source": "python://a/b"}], "spec.model.adapters[0].source"),
        (("model", "adapters"), [{"name": "a", "source": "pvc://"}], "spec.model.adapters[0].source"),
        (("model", "adapters"), [{"name": "a=b", "source": "file:///a"}], "spec.model.adapters[0].name"),
        (("model", "adapters"), [{"name": "a"}], "spec.model.adapters[0].source"),
        (("model", "adapters"), [{"name": "a", "source": "file:///a"}] * 2, "spec.model.adapters"),
        (("model", "adapters"), [{"name": str(n), "source": "file:///a"} for n in range(17)], "spec.model.adapters"),
        (
            ("model",),
            {"source": "file:///m", "servedName": "a", "adapters": [{"name": "a", "source": "file:///a"}]},
            "spec.model.adapters",
        ),
        (("model", "chatTemplate"), {}, "spec.model.chatTemplate.configMapKeyRef"),
        (("model", "chatTemplate"), {"configMapKeyRef": {"name": "t"}}, "spec.model.chatTemplate.configMapKeyRef.key"),
        (
            ("model", "chatTemplate"),
            {"configMapKeyRef": {"name": "T", "key": "k"}},
            "spec.model.chatTemplate.configMapKeyRef.name",
        ),
        (
            ("model", "chatTemplate"),
            {"configMapKeyRef": {"name": "t", "key": "../k"}},
            "spec.model.chatTemplate.configMapKeyRef.key",
        ),
        (("engine", "apiKeySecretRef"), {"name": "s"}, "spec.engine.apiKeySecretRef.key"),
        (("engine", "toolCallParser"), "granite", "spec.engine.toolCallParser"),
        (("engine", "kvCache"), {"pageSize": 8}, "spec.engine.kvCache.pageSize"),
        (("engine", "kvCache"), {"dtype": "fp8"}, "spec.engine.kvCache.dtype"),
        (("engine", "kvCache"), {"prefixCaching": "no"}, "spec.engine.kvCache.prefixCaching"),
        (("engine", "scheduling"), {"policy": "fair"}, "spec.engine.scheduling.policy"),
        (("engine", "scheduling"), {"maxSequences": 9, "tokensPerStep": 8}, "spec.engine.scheduling.tokensPerStep"),
        (("engine", "scheduling"), {"chunkTokens": 9, "tokensPerStep": 8}, "spec.engine.scheduling.chunkTokens"),
        (("engine",), {"args": ["--max-num-seqs=4"], "scheduling": {"maxSequences": 4}}, "spec.engine.args[0]"),
        (("engine", "limits"), {"answers": 17}, "spec.engine.limits.answers"),
        (("engine", "limits"), {"queuedTokens": 0}, "spec.engine.limits.queuedTokens"),
        (("engine", "args"), ["--kernels=auto", "--lora-adapter=a=/a"], "spec.engine.args[1]"),
        (("model", "quantization"), "fp8", "spec.model.quantization"),
        (("resources",), {"accelerator": {"name": "nvidia.com/gpu", "count": 9}}, "spec.resources.accelerator.count"),
        (("engine", "args"), ["--tensor-parallel-size=2"], "spec.engine.args[0]"),
        (("engine", "runtime"), "other", "spec.engine.runtime"),
        (("scaling", "idleToZero"), "5 minutes", "spec.scaling.idleToZero"),
        (("scaling", "mode"), "hpa", "spec.scaling.mode"),
        (("scaling",), {"mode": "external", "idleToZero": "5m"}, "spec.scaling.mode"),
        (("scaling", "target"), {"ttft": {"p99": "1s"}}, "spec.scaling.target.ttft.p99"),
        (("scaling", "schedule"), [{"cron": "0 8 * * *", "duration": "1h"}], "spec.scaling.schedule"),
        (("scaling", "schedule"), [{"cron": "0 8 * *", "duration": "1h", "min": 1}], "spec.scaling.schedule[0].cron"),
        (
            ("scaling", "schedule"),
            [{"cron": "0 8 31 2 *", "duration": "1h", "min": 1}],
            "spec.scaling.schedule[0].cron",
        ),
        (
            ("scaling", "schedule"),
            [{"cron": "0 8 * * *", "duration": "1h", "min": 1, "timeZone": "Mars/Olympus"}],
            "spec.scaling.schedule[0].timeZone",
        ),
        (("scaling", "schedule"), [{"cron": "0 8 * * *", "duration": "1h", "min": 2}], "spec.scaling.schedule"),
        (
            ("scaling", "scaleUp"),
            {"policies": [{"type": "Pods", "value": 1, "period": "1h"}]},
            "spec.scaling.scaleUp.policies[0].period",
        ),
        (
            ("scaling", "scaleDown"),
            {"policies": [{"type": "Percent", "value": 101, "period": "1m"}]},
            "spec.scaling.scaleDown.policies[0].value",
        ),
        (("scaling", "min"), 0, "spec.scaling.min"),
        (("rollout", "afterPromotion"), {"watch": "soon"}, "spec.rollout.afterPromotion.watch"),
        (("rollout", "steps"), [{"mirror": "110%"}], "spec.rollout.steps[0].mirror"),
        (("rollout", "steps"), [{"loadTest": {"prompts": 1}}], "spec.rollout.steps[0].loadTest.prompts"),
        (("rollout", "steps"), [{"preview": {}}], "spec.rollout.steps"),
        (("rollout", "steps"), [{"pause": {}, "hold": "1s"}], "spec.rollout.steps"),
        (("rollout", "steps"), [{"mirror": "1%", "minRequests": 5}], "spec.rollout.steps"),
        (
            ("rollout",),
            {"route": {"header": {"x": "y"}}, "steps": [{"weight": 5}, {"preview": {}}]},
            "spec.rollout.steps",
        ),
        (("rollout", "guard"), {"latency": [{"signal": "cpu"}]}, "spec.rollout.guard.latency[0].signal"),
        (("rollout", "guard"), {"freePages": {"min": "101%"}}, "spec.rollout.guard.freePages.min"),
        (("rollout", "guard"), {"promql": [{"name": "a", "query": "up"}]}, "spec.rollout.guard.promql"),
        (("rollout", "guard"), {"promql": [{"name": "a", "query": "up", "max": 1}] * 2}, "spec.rollout.guard.promql"),
        (("rollout", "alerts"), {"matchLabels": {}, "onAlert": "page"}, "spec.rollout.alerts.onAlert"),
        (("rollout",), {"historyLimit": 0}, "spec.rollout.historyLimit"),
        (("traffic", "provider"), "GatewayAPI", "spec.traffic.gatewayAPI"),
        (("traffic", "fallback"), {}, "spec.traffic.fallback.service"),
        (("cost",), {"ceilingPerHour": 1}, "spec.cost.ceilingPerHour"),
        (("cost",), {"perAcceleratorHour": 2, "ceilingPerHour": 1}, "spec.cost.ceilingPerHour"),
        (("engine", "args"), ["--model=x"], "spec.engine.args[0]"),
        (("engine", "env"), [{"name": "OMP_NUM_THREADS", "value": "9"}], "spec.engine.env[0].name"),
        (("scaling",), {"min": 3, "max": 2}, "spec.scaling.min"),
        (("rollout", "steps"), [{"weight": 50}, {"weight": 10}], "spec.rollout.steps"),
        (("rollout", "steps"), [{"weight": 50}, {"weight": 50}], "spec.rollout.steps"),
        (("rollout", "steps"), [{"weight": 50, "pause": {"duration": "1s"}}], "spec.rollout.steps"),
        (("model", "source"), "ftp://x", "spec.model.source"),
        (("model", "sauce"), "x", "spec.model.sauce"),
        (("model", "source"), "pvc://Claim/x", "spec.model.source"),
        (("scaling", "max"), "two", "spec.scaling.max"),
        (("scaling", "max"), True, "spec.scaling.max"),
        (("scaling", "scaleDown"), {"stabilization": "soon"}, "spec.scaling.scaleDown.stabilization"),
    ],
)
def test_each_mistake_is_refused_by_its_field(path: tuple[str, ...], value: object, field: str) -> None:
    assert field in errors(merged(*path, value))


@pytest.mark.parametrize(
    ("model", "name", "count", "field"),
    [
        ({"quantization": "fp8"}, "example.com/npu", 1, "spec.model.quantization"),
        ({"quantization": "int8"}, "nvidia.com/gpu", 1, "spec.model.quantization"),
        ({"speculation": {"method": "ngram"}}, "nvidia.com/gpu", 1, None),
        ({"speculation": {"method": "draft", "model": "hf://a/b"}}, "nvidia.com/gpu", 2, None),
        ({"adapters": [{"name": "a", "source": "file:///a"}]}, "nvidia.com/gpu", 2, None),
        ({"adapters": [{"name": "a", "source": "file:///a"}], "quantization": "awq"}, "nvidia.com/gpu", 1, None),
        ({"quantization": "int8", "speculation": {"method": "ngram"}}, "example.com/npu", 9, None),
    ],
)
def test_what_goes_with_gpus(model: dict[str, Any], name: str, count: int, field: str | None) -> None:
    spec = merged("resources", "accelerator", {"name": name, "count": count})
    spec["model"] |= model
    if name != "nvidia.com/gpu":
        spec["engine"] = {"image": "registry.example/engine:1"}
    assert list(errors(spec)) == ([] if field is None else [field])


@pytest.mark.parametrize("limit", [{"promptTokens": 16}, {"outputTokens": 17}], ids=str)
def test_limits_must_fit_into_the_models_length(limit: dict[str, int]) -> None:
    spec = merged("engine", "limits", limit)
    assert errors(spec) == {}
    spec["model"]["maxLength"] = 16
    assert list(errors(spec)) == [f"spec.engine.limits.{name}" for name in limit]


def test_the_flags_of_older_specs_may_stay_in_args() -> None:
    assert errors(merged("engine", "args", ["--max-num-seqs=8", "--max-num-batched-tokens=256"])) == {}


def test_fetched_weights_are_kept_on_a_claim_and_others_are_refused_one() -> None:
    spec = merged("model", "source", "hf://example/llama")
    spec["model"]["cache"] = {"claim": "fetched"}
    assert errors(spec) == {}
    pod = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
    mount = {"name": "model-cache", "mountPath": "/var/cache/pagefleet"}
    assert mount in pod["initContainers"][0]["volumeMounts"]
    assert {**mount, "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert {"name": "model-cache", "persistentVolumeClaim": {"claimName": "fetched"}} in pod["volumes"]
    spec["engine"] = {**spec.get("engine", {}), "env": [{"name": "HF_HOME", "value": "/elsewhere"}]}
    assert list(errors(spec)) == ["spec.engine.env[0].name"]
    assert list(errors(merged("model", "cache", {"claim": "fetched"}))) == ["spec.model.cache"]


@pytest.mark.parametrize(
    ("scaling", "engine", "field"),
    [
        ({"warmSpares": 1}, {}, None),
        ({"warmSpares": 0}, {"apiKeySecretRef": {"name": "s", "key": "k"}}, None),
        ({"warmSpares": 1}, {"apiKeySecretRef": {"name": "s", "key": "k"}}, "spec.scaling.warmSpares"),
        ({"warmSpares": 2}, {}, "spec.cost.ceilingPerHour"),
    ],
    ids=str,
)
def test_what_goes_with_warm_spares(scaling: dict[str, Any], engine: dict[str, Any], field: str | None) -> None:
    spec = merged("scaling", "min", 2)
    spec["scaling"] |= {"max": 4, **scaling}
    spec["engine"] = {**spec.get("engine", {}), **engine}
    spec["cost"] = {"perAcceleratorHour": 2.0, "ceilingPerHour": 7.0}
    assert list(errors(spec)) == ([] if field is None else [field])


def test_two_models_that_would_lie_at_one_path_in_the_pod_are_refused() -> None:
    def draft(source: str) -> dict[str, str]:
        spec = merged("model", "source", "hf://team/chat")
        spec["model"]["speculation"] = {"method": "draft", "model": source, "tokens": 4}
        return errors(spec)

    field = "spec.model.speculation.model"
    assert list(draft("s3://team/chat")) == [field]
    assert "hf://team/chat (spec.model.source)" in draft("s3://team/chat")[field]
    assert draft("hf://team/chat") == {}, "the same files twice"
    assert draft("s3://team/draft") == {}


def test_the_model_is_required() -> None:
    assert errors({}) == {"spec.model": "is required"}


def test_only_what_affects_pods_makes_a_revision() -> None:
    def hashed(spec: dict[str, Any]) -> str:
        parsed = parse(spec)
        assert isinstance(parsed, Spec)
        return revision_hash(parsed.raw)

    base = hashed(MINIMAL)
    assert hashed(merged("scaling", "max", 5)) == base
    assert hashed(merged("rollout", "steps", [{"weight": 5}])) == base
    assert hashed(merged("model", "quantization", "none")) == base, "a default that is written out changes nothing"
    assert hashed(merged("engine", "args", ["--max-num-seqs=4"])) != base
    assert hashed(merged("resources", "cpu", "2")) != base


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", "speculation"), {"method": "ngram"}),
        (("model", "speculation"), {"method": "ngram", "tokens": 5}),
        (("model", "adapters"), [{"name": "a", "source": "pvc://a/b"}]),
        (("model", "chatTemplate"), {"configMapKeyRef": {"name": "t", "key": "k"}}),
        (("model", "speculation"), {"method": "draft", "model": "hf://a/b"}),
        (("engine", "kvCache"), {"dtype": "float16"}),
        (("engine", "kvCache"), {"prefixCaching": False}),
        (("engine", "kvCache"), {"events": True}),
        (("engine", "scheduling"), {"policy": "fcfs"}),
        (("engine", "scheduling"), {"maxSequences": 8}),
        (("engine", "scheduling"), {"tokensPerStep": 256}),
        (("engine", "scheduling"), {"chunkTokens": 128}),
        (("engine", "limits"), {"queuedTokens": 1000}),
        (("engine", "limits"), {"answers": 2}),
        (("engine", "apiKeySecretRef"), {"name": "s", "key": "k"}),
        (("engine", "toolCallParser"), "llama3_json"),
    ],
)
def test_a_field_that_changes_pods_changes_the_revision(path: tuple[str, ...], value: object) -> None:
    def pods(spec: object) -> tuple[str, dict[str, Any]]:
        child = child_of(spec)
        return child.revision, deployment(child, 1)["spec"]["template"]["spec"]

    (before, plain), (after, changed) = pods(MINIMAL), pods(merged(*path, value))
    assert before != after
    assert plain != changed
