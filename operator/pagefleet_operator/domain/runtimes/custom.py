"""Any other engine that speaks OpenAI's API: the spec says its image, command, port, probes and metrics.

What it may need of the rest of the spec comes as PAGEFLEET_* variables, which args can name as $(PAGEFLEET_MODEL).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.engine_metrics import Engine, metrics_from
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.runtimes import launch as common
from pagefleet_operator.domain.runtimes.adapter import Adapter
from pagefleet_operator.domain.runtimes.flags import drain_seconds
from pagefleet_operator.domain.runtimes.launch import Launch


def launch(child: Child, _release: str) -> Launch:
    engine: Mapping[str, Any] = child.snapshot["engine"]
    probes: Mapping[str, str] = engine["probes"]
    ready, port, metrics = probes["readiness"], int(engine.get("port", ENGINE_PORT)), engine.get("metrics")
    return Launch(
        image="",
        command=tuple(engine.get("command", ())),
        args=(),
        drain=drain_seconds({}) + common.KNOWN_DELAY,
        env=(*common.caches(child.snapshot), *_told(child, port)),
        startup=probes.get("startup", ready),
        readiness=ready,
        liveness=probes.get("liveness", ready),
        stopping=tuple(engine.get("preStop", ())),
        engine=Engine(port, metrics_from(metrics) if metrics else None),
        port=port,
    )


def _told(child: Child, port: int) -> list[dict[str, Any]]:
    model, slots = child.snapshot["model"], common.engine_part(child.snapshot, "scheduling").get("maxSequences")
    values = {
        "PAGEFLEET_MODEL": common.model_path(model["source"]),
        "PAGEFLEET_MODEL_REVISION": common.hub_revision(model["source"]),
        "PAGEFLEET_SERVED_MODEL_NAME": common.served_name(child),
        "PAGEFLEET_PORT": port,
        "PAGEFLEET_MAX_MODEL_LEN": model.get("maxLength"),
        "PAGEFLEET_MAX_NUM_SEQS": slots,
        "PAGEFLEET_ACCELERATORS": common.accelerator(child.snapshot)[1] or None,
    }
    written = [common.plain(name, str(value)) for name, value in values.items() if value is not None]
    return [*written, *common.api_key(child.snapshot, "PAGEFLEET_API_KEY")]


ADAPTER = Adapter(
    name="custom",
    launch=launch,
    required=("engine.image", "engine.probes"),
    own_fields=("engine.command", "engine.port", "engine.probes", "engine.preStop", "engine.metrics"),
    unsupported={
        "model.quantization": ("int8", "fp8", "awq"),
        "model.speculation": (),
        "model.adapters": (),
        "model.chatTemplate": (),
        "engine.kvCache.pageSize": (),
        "engine.kvCache.pages": (),
        "engine.kvCache.memoryFraction": (),
        "engine.kvCache.dtype": (),
        "engine.kvCache.prefixCaching": (),
        "engine.scheduling.policy": (),
        "engine.scheduling.tokensPerStep": (),
        "engine.scheduling.chunkTokens": (),
        "engine.limits.promptTokens": (),
        "engine.limits.outputTokens": (),
        "engine.limits.queued": (),
        "engine.limits.queuedTokens": (),
        "engine.limits.answers": (),
        "engine.toolCallParser": (),
    },
)
