"""Protects the typed view of the part of a spec that makes pods: every field of the schema has its place in it, every value
is read as it was given, and a view can be made of any JSON."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.golden_manifests import spec_of

from pagefleet_operator.domain.base.revision_spec import (
    Accelerator,
    Engine,
    KVCache,
    Limits,
    LoraAdapter,
    Model,
    Placement,
    Probes,
    Resources,
    RevisionSpec,
    Scheduling,
    Speculation,
    revision_spec,
)
from pagefleet_operator.domain.spec.schema.spec import SPEC

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
NAMES = st.sampled_from([
    "model", "engine", "resources", "placement", "source", "speculation", "adapters", "cache", "chatTemplate",
    "configMapKeyRef", "limits", "kvCache", "scheduling", "apiKeySecretRef", "probes", "args", "env", "nodes",
    "accelerator", "nodeSelector", "tolerations",
])  # fmt: skip
NAMED = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))
# Fields of the view that hold one field of an object of the schema.
SHORT = {"cacheClaim": "cache", "cacheSize": "cache", "apiKey": "apiKeySecretRef"}


def properties(*path: str) -> set[str]:
    schema: Any = SPEC
    for name in path:
        schema = schema["properties"][name]
    return set(schema.get("items", schema)["properties"])


def named(kind: Any) -> set[str]:
    heads = [(one.name.split("_")[0], one.name.split("_")[1:]) for one in fields(kind)]
    camel = {head + "".join(word.capitalize() for word in rest) for head, rest in heads}
    return {SHORT.get(name, name) for name in camel}


def test_every_field_of_the_schema_has_its_place_in_the_view() -> None:
    for path, kind in (
        (("model",), Model),
        (("model", "speculation"), Speculation),
        (("model", "adapters"), LoraAdapter),
        (("engine",), Engine),
        (("engine", "limits"), Limits),
        (("engine", "kvCache"), KVCache),
        (("engine", "scheduling"), Scheduling),
        (("engine", "probes"), Probes),
        (("resources",), Resources),
        (("resources", "accelerator"), Accelerator),
        (("placement",), Placement),
    ):
        assert named(kind) == properties(*path), path


def test_values_are_read_as_they_were_given() -> None:
    view = revision_spec(spec_of("full"))
    assert (view.model.speculation, view.model.drafting) == (Speculation("draft", 5, "hf://example/llama-1b"),) * 2
    assert [adapter.name for adapter in view.model.adapters] == ["legal", "team-a/tone", "casual"]
    assert view.engine.kv_cache == KVCache(32, 2048, 0.8, "float16", False)
    assert view.engine.limits == Limits(6000, 2000, 64, 100000, 4)
    assert repr(revision_spec({"engine": {"kvCache": {"memoryFraction": 1}}}).engine.kv_cache.memory_fraction) == "1"
    assert revision_spec({"resources": {"cpu": "1000m"}}).resources == Resources("1000m", "4Gi", None)


def test_no_method_and_method_none_draft_nothing() -> None:
    assert revision_spec({"model": {}}).model.drafting is None
    assert revision_spec({"model": {"speculation": {"method": "none", "tokens": 4}}}).model.drafting is None


@given(raw=JSON | NAMED)
def test_any_json_has_a_view(raw: Any) -> None:
    view = revision_spec(raw)
    assert isinstance(view, RevisionSpec)
    parts = (view.model, view.engine, view.resources, view.placement, view.engine.limits, view.engine.kv_cache)
    assert all(map(is_dataclass, parts))
