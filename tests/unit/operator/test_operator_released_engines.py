"""Protects that the operator starts and reads other engines as they were released: a flag that their argument parser does not
know, a value that it refuses, or a metric that they do not export fails here. The facts are those of tests/data/released,
which `python -m support.released_engines` reads from the engines' own packages and sources."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of
from support.released_engines import facts, version_of

from pagefleet_contract.engine_metrics import HISTOGRAMS, LISTS, NUMBERS, EngineMetrics, selector
from pagefleet_engine import flags
from pagefleet_observability.rules.engines import OTHERS
from pagefleet_operator.domain.runtimes.catalog import REGISTRY
from pagefleet_operator.domain.runtimes.launch import COMMON_FLAGS
from pagefleet_operator.domain.runtimes.node import Node
from pagefleet_operator.domain.spec.parse import SpecErrors, parse
from pagefleet_operator.domain.spec.schema.spec import SPEC

RELEASED = ("vllm", "sglang", "tgi")
PAGES = Path(__file__).parents[2] / "data"
ACCELERATORS = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "google.com/tpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
)


def choices(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Each field of a schema that has a list of values, or is true or false, with each of its values."""
    for value in schema.get("enum", (True, False) if schema.get("type") == "boolean" else ()):
        yield path, value
    for name, part in schema.get("properties", {}).items():
        yield from choices(part, (*path, name))


def variants(name: str) -> Iterator[dict[str, Any]]:
    """The engine's golden spec, and all that differ from it in one choice and that the operator accepts."""
    yield spec_of(name)
    changes = [
        *choices({"properties": {part: SPEC["properties"][part] for part in ("model", "engine")}}),
        *((("resources", "accelerator", "name"), accelerator) for accelerator in ACCELERATORS),
        *(
            (("model", "speculation"), {"method": method, "model": "pvc://weights/small"})
            for method in ("draft", "eagle", "eagle3")
        ),
        (("model", "speculation"), {"method": "ngram"}),
        (("engine", "nodes"), 2),
        (("engine", "pipelineParallelSize"), 2),
    ]
    for (*steps, last), value in changes:
        changed = place = copy.deepcopy(spec_of(name))
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = value
        changed["engine"].setdefault("image", "registry.example/engine:1")
        if changed["engine"]["runtime"] == name and not isinstance(parse(changed), SpecErrors):
            yield changed


def arguments(spec: dict[str, Any]) -> list[str]:
    child = child_of(spec)
    adapter = REGISTRY[child.spec.engine.runtime]
    nodes = [adapter.node_launch(child.spec, Node(2, worker)).flags for worker in (False, True)]
    sleep = adapter.sleep.flags if adapter.sleep else ()
    return [*adapter.launch(child, "1").args, *(flag for flags in nodes for flag in flags), *sleep]


def complaints(name: str, given: list[str]) -> Iterator[str]:
    """What the released parser would refuse in a command line."""
    flags = facts(name)["flags"]
    flag = ""
    for argument in given:
        if not argument.startswith("--"):
            if flags.get(flag) != "values":
                yield f"{argument} follows {flag}"
            continue
        flag, equals, value = argument.partition("=")
        takes = flags.get(flag)
        if takes is None:
            yield f"{flag} is unknown"
        elif isinstance(takes, list) and value not in takes:
            yield f"{flag} does not take {value}"
        elif takes != "values" and (takes == "nothing") == bool(equals):
            yield f"{flag} takes {takes}, and {argument} is given"


@pytest.mark.parametrize("name", RELEASED)
def test_the_facts_are_of_the_version_of_the_image(name: str) -> None:
    assert facts(name)["version"] == version_of(name)


@pytest.mark.parametrize("name", RELEASED)
def test_every_command_line_is_one_that_the_released_parser_takes(name: str) -> None:
    tried = list(variants(name))
    assert len(tried) > 12
    assert {complaint for spec in tried for complaint in complaints(name, arguments(spec))} == set()


@pytest.mark.parametrize("name", RELEASED)
def test_the_flags_that_the_operator_keeps_for_itself_exist(name: str) -> None:
    """A flag that was renamed would be free again in spec.engine.args. The facts have the long names only."""
    adapter = REGISTRY[name]
    own = {*adapter.owned_flags, *adapter.shared_flags, adapter.slots_flag} - set(COMMON_FLAGS)
    assert {flag for flag in own if flag.startswith("--")} - set(facts(name)["flags"]) == set()


def test_what_the_parser_refuses_is_seen() -> None:
    wrong = ["--max-num-sequences=3", "--kv-cache-dtype=float8", "--enable-lora=1", "--port", "x"]
    assert len(set(complaints("vllm", wrong))) == 5


def test_speculation_of_vllm_has_a_method_that_it_knows() -> None:
    """The method stands in a JSON document that the parser itself does not look into."""
    known = facts("vllm")["flags"]["--spec-method"]
    written = [one.partition("=")[2] for spec in variants("vllm") for one in arguments(spec) if "speculative" in one]
    assert {json.loads(one)["method"] for one in written} <= set(known)
    assert len(set(written)) >= 2


def test_sglang_gets_all_numbers_of_a_chain_or_none() -> None:
    """Its arguments are asserted together: steps, width and tokens of a draft model, or none of the three (0.5.23,
    speculative_hook.py). With one token a step, the tokens to verify are the steps and the token before them."""
    chains = set()
    for spec in variants("sglang"):
        given = dict(one.partition("=")[::2] for one in arguments(spec) if one.startswith("--speculative"))
        numbers = [given.get(f"--speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
        if given.get("--speculative-algorithm") in ("STANDALONE", "EAGLE", "EAGLE3"):
            steps, width, tokens = map(int, filter(None, numbers))
            assert (width, tokens) == (1, steps + 1)
            chains.add(given["--speculative-algorithm"])
        else:
            assert numbers[:2] == [None, None]
    assert chains == {"STANDALONE", "EAGLE", "EAGLE3"}


def test_our_engine_has_every_precision_of_the_spec_on_a_gpu() -> None:
    offered = SPEC["properties"]["engine"]["properties"]["kvCache"]["properties"]["dtype"]["enum"]
    choices = flags.BY_NAME["--kv-cache-dtype"].devices
    assert set(offered) == set(choices["cuda"])
    assert set(offered) - {"fp8", "bfloat16"} == set(choices["cpu"])


def exported(name: str) -> dict[str, str]:
    """The samples of a metrics page by the kind of their metric. prometheus_client ends a counter's name with _total."""
    total = "" if name == "tgi" else "_total"
    return {
        metric.removesuffix(total) + total if kind == "counter" else metric: kind
        for metric, kind in facts(name)["metrics"].items()
    }


def named(metrics: EngineMetrics) -> Iterator[tuple[str, str]]:
    """The names that an adapter reads, without labels, with what they are read as."""
    for group, read_as in ((NUMBERS, "number"), (HISTOGRAMS, "histogram")):
        yield from ((selector(text).name, read_as) for field in group if (text := getattr(metrics, field)))
    yield from ((selector(text).name, "number") for field in LISTS for text in getattr(metrics, field))


@pytest.mark.parametrize("name", RELEASED)
def test_every_metric_that_is_read_is_exported(name: str) -> None:
    metrics, sleep = REGISTRY[name].metrics, REGISTRY[name].sleep
    assert metrics is not None
    known = exported(name)
    asleep = [(selector(sleep.metric).name, "number")] if sleep else []
    for metric, read_as in (*named(metrics), *asleep):
        kind = known.get(metric) or known.get(metric.removesuffix("_sum"))
        assert kind is not None, f"{name} {facts(name)['version']} does not export {metric}"
        assert (kind == "histogram") == (read_as == "histogram" or metric.endswith("_sum")), metric


@pytest.mark.parametrize("name", RELEASED)
def test_the_pages_of_other_tests_have_only_released_names(name: str) -> None:
    prefix = {"tgi": "tgi_"}.get(name, f"{name}:")
    lines = (PAGES / f"metrics-{name}.txt").read_text().splitlines()
    names = {line.partition("{")[0].partition(" ")[0] for line in lines if line.startswith(prefix)}
    known = exported(name)
    histograms = {
        f"{metric}_{part}" for metric, kind in known.items() for part in ("bucket", "sum", "count", "created")
    }
    assert names - set(known) - histograms - {one.replace("_total", "_created") for one in known} == set()


def test_rules_and_dashboards_read_only_names_that_are_exported() -> None:
    known = {metric for name in RELEASED for metric in exported(name)}
    names = {name.removesuffix("_sum") for others in OTHERS.values() for name in others}
    assert names - known == set()


def test_connectors_that_the_documentation_names_exist() -> None:
    text = (Path(__file__).parents[3] / "docs/runtimes.md").read_text()
    documents = re.findall(r"`--kv-transfer-config=(\{[^`]*\})`", text)
    assert documents
    for document in documents:
        assert json.loads(document)["kv_connector"] in facts("vllm")["KV connectors"]
        given = spec_of("vllm")
        given["engine"]["args"] = [f"--kv-transfer-config={document}"]
        assert not isinstance(parse(given), SpecErrors)
        assert set(complaints("vllm", given["engine"]["args"])) == set()
