"""Protects what the pieces share and cannot import from each other: flags, bounds, defaults, the metrics that really appear."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from support.golden_manifests import child_of, spec_of
from support.sample_service import sample

from pagefleet_contract.engine_metrics import HISTOGRAMS, OURS, EngineMetrics
from pagefleet_contract.engine_options import FLAG_FIELDS, MASTER_PORT
from pagefleet_contract.names import KV_EVENTS_PORT, KV_REPLAY_PORT
from pagefleet_engine import flags
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.parsing.registry import Style
from pagefleet_engine.api.planning.limits import Limits
from pagefleet_engine.core.requests import EngineConfig, EngineStats, Speculation
from pagefleet_engine.main import configure
from pagefleet_gateway.cluster.readings import Reading, reading_in
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.leaderworkerset import leader_worker_set
from pagefleet_operator.domain.runtimes.flags import drain_seconds
from pagefleet_operator.domain.runtimes.pagefleet import ADAPTER, DEFAULT_SLOTS
from pagefleet_operator.domain.runtimes.volumes import API_KEYS, CHAT_TEMPLATE
from pagefleet_operator.domain.spec.schema import engine as schema_engine
from pagefleet_operator.domain.spec.schema.guard_signals import ENGINE_SIGNALS
from pagefleet_operator.domain.spec.schema.spec import SPEC
from pagefleet_operator.metrics.engine_readings import READ


def arguments(spec: object) -> list[str]:
    container = deployment(child_of(spec), 1)["spec"]["template"]["spec"]["containers"][0]
    return shlex.split(" ".join(container["args"]))


def test_the_engine_understands_the_flags_that_the_operator_writes(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    written = arguments(spec_of("full"))
    config = configure([argument.replace(API_KEYS.path, str(keys)) for argument in written])
    engine, limits = config.engine, config.limits
    assert (config.served_model_names, config.port) == (("llama",), 8000)
    assert config.drain_timeout == drain_seconds(limits.output_tokens)
    assert (engine.model, engine.max_model_len, engine.quantization) == (
        "file:///models/weights/llama/8b",
        8192,
        "int8",
    )
    assert engine.speculation == Speculation("draft", 5, "file:///tmp/models/example--llama-1b")
    assert engine.adapters == (
        ("legal", "/models/tuned/legal"),
        ("team-a/tone", "/opt/adapters/tone"),
        ("casual", "/tmp/models/60303ae22b998861--casual"),
    )
    assert (engine.page_size, engine.num_pages, engine.kv_memory_fraction) == (32, 2048, 0.8)
    assert (engine.kv_cache_dtype, engine.prefix_caching, engine.scheduling_policy) == ("float16", False, "fcfs")
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_chunk_tokens) == (32, 1024, 512)
    assert limits == Limits(6000, 2000, 64, 100000, 4)
    assert (config.rules.tool_style, config.rules.priorities) == (Style.LLAMA3_JSON, False)
    assert config.chat_template == Path(CHAT_TEMPLATE.path)
    assert config.keys.needed
    assert config.keys.valid("secret")
    names = {
        argument.split("=")[0]
        for argument in [*written, *_written("gpu"), *_nodes("leader")]
        if argument.startswith("--")
    }
    assert names - {"--kernels", "--kv-offload-memory", "--device"} == set(ADAPTER.owned_flags) | set(
        ADAPTER.shared_flags
    )


def _written(name: str) -> list[str]:
    """The engine's arguments in the Deployment of a golden spec."""
    pod = deployment(child_of(spec_of(name)), 1)["spec"]["template"]["spec"]
    arguments: list[str] = pod["containers"][0]["args"]
    return arguments


def test_gpus_reach_the_engine() -> None:
    engine = configure(_written("gpu")).engine
    assert (engine.device, engine.tensor_parallel_size, engine.quantization) == ("cuda", 2, "fp8")
    assert engine.kv_offload_memory == 32 << 30
    events = engine.kv_events_config
    assert events is not None and events.publishes
    assert (events.endpoint, events.replay_endpoint) == (f"tcp://*:{KV_EVENTS_PORT}", f"tcp://*:{KV_REPLAY_PORT}")
    assert events.topic == "kv@$(POD_IP)@chat"


def _nodes(role: str, **variables: str) -> list[str]:
    """The engine's arguments in a golden LeaderWorkerSet, with the variables that its controller sets."""
    made = leader_worker_set(child_of(spec_of("nodes")), 1)["spec"]["leaderWorkerTemplate"]
    arguments: list[str] = made[f"{role}Template"]["spec"]["containers"][0]["args"]
    for name, value in variables.items():
        arguments = [argument.replace(f"$({name})", value) for argument in arguments]
    return arguments


def test_every_pod_of_a_group_knows_its_place() -> None:
    address = {"LWS_LEADER_ADDRESS": "chat-0.chat-0.team-a"}
    leader = configure(_nodes("leader", LWS_WORKER_INDEX="0", **address))
    worker = configure(_nodes("worker", LWS_WORKER_INDEX="1", **address))
    assert (leader.node, worker.node, worker.master) == (0, 1, "chat-0.chat-0.team-a")
    assert leader.engine == worker.engine
    assert (leader.engine.nodes, leader.engine.tensor_parallel_size, leader.engine.master_port) == (2, 16, MASTER_PORT)


def test_a_spec_that_says_little_leaves_the_engine_its_defaults() -> None:
    config = configure(arguments(spec_of("minimal")))
    assert config.engine == EngineConfig(
        "file:///models/smollm2", long_prompt_tokens=512, speculation=Speculation("ngram")
    )
    plain = spec_of("minimal")
    plain["model"]["speculation"] = {"method": "none", "tokens": 4}
    assert configure(arguments(plain)).engine.speculation is None
    sampled = configure(arguments(sample()["spec"]))
    assert (sampled.engine.num_pages, sampled.engine.max_num_seqs, sampled.limits.queued) == (112, 8, 128)


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("model.quantization", flags.BY_NAME["--quantization"].values),
        (
            "engine.kvCache.dtype",
            {value for own in flags.BY_NAME["--kv-cache-dtype"].devices.values() for value in own},
        ),
        ("engine.scheduling.policy", flags.BY_NAME["--scheduling-policy"].values),
        ("engine.toolCallParser", flags.BY_NAME["--tool-call-parser"].values),
    ],
)
def test_the_schema_offers_what_the_engine_takes(path: str, taken: tuple[object, ...]) -> None:
    offered: Any = SPEC
    for name in path.split("."):
        offered = offered["properties"][name]
    assert sorted(offered["enum"]) == sorted(taken)


def test_every_shared_flag_is_the_engines_and_its_field_is_in_the_schema() -> None:
    assert set(FLAG_FIELDS) <= set(flags.BY_NAME)
    for name, field in FLAG_FIELDS.items():
        schema: Any = SPEC
        for part in field.split(".") if field else ():
            schema = schema["properties"][part]
        assert schema, name


def test_descriptions_name_the_engines_defaults() -> None:
    """Fields without a default in the schema say what the engine does without them."""
    flags = configure(["serve", "--model=file:///m", "--served-model-name=m"])
    engine, limits = flags.engine, flags.limits
    for part, name, default in (
        (schema_engine.KV_CACHE, "pageSize", engine.page_size),
        (schema_engine.KV_CACHE, "dtype", engine.kv_cache_dtype),
        (schema_engine.SCHEDULING, "policy", engine.scheduling_policy),
        (schema_engine.SCHEDULING, "maxSequences", engine.max_num_seqs),
        (schema_engine.SCHEDULING, "maxSequences", DEFAULT_SLOTS[""]),
        (schema_engine.SCHEDULING, "tokensPerStep", engine.max_num_batched_tokens),
        (schema_engine.SCHEDULING, "chunkTokens", engine.max_chunk_tokens),
        (schema_engine.LIMITS, "queued", limits.queued),
        (schema_engine.LIMITS, "answers", limits.n),
        (schema_engine.ENGINE, "toolCallParser", flags.rules.tool_style),
    ):
        assert f"{default} when omitted" in part["properties"][name]["description"], name


def test_the_engine_exposes_what_the_operator_reads() -> None:
    text = Metrics("m", EngineConfig("file:///m")).text().decode()
    for name in READ:
        if name != "kvUsage":  # told by pages instead
            assert f'{getattr(OURS, name)}{{model_name="m"}}' in text
    for name in HISTOGRAMS:
        assert f'{getattr(OURS, name)}_bucket{{model_name="m",le="+Inf"}}' in text


def test_the_guard_s_engine_signals_are_the_histograms_that_engines_report() -> None:
    assert set(ENGINE_SIGNALS) == set(HISTOGRAMS) <= set(EngineMetrics.__dataclass_fields__)


def test_the_engine_exposes_what_the_gateway_reads() -> None:
    """The names of adapters are those of vLLM's metric: running, waiting, and how many may be loaded."""
    metrics = Metrics("m", EngineConfig("file:///m", max_adapters=4))
    stats = EngineStats(
        3, 2, 100, 20, 5, 0, 0, 0, 9, running_adapters=("legal", "team-a/tone"), waiting_adapters=("rude",)
    )
    metrics.load(stats)
    labels = 'max_lora="4",running_lora_adapters="legal,team-a/tone",waiting_lora_adapters="rude"'
    assert f"pagefleet_lora_requests_info{{{labels}}} " in metrics.text().decode()
    assert reading_in(metrics.text()) == Reading(3, 2, 0, 0.75, 1600, frozenset({"legal", "team-a/tone"}))
    metrics.load(EngineStats(0, 0, 100, 20, 80, 0, 0, 0, 10))
    assert reading_in(metrics.text()) == Reading(cache_tokens=1600), "what ran before is told no more"
    began = time.time()
    (value,) = [line.split()[-1] for line in metrics.text().decode().splitlines() if line.startswith("pagefleet_lora")]
    assert began - 1 < float(value) < time.time() + 1
