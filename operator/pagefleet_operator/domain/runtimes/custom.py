"""Any other engine that speaks OpenAI's API: the spec says its image, command, port, probes and metrics.

What it may need of the rest of the spec comes as PAGEFLEET_* variables, which args can name as $(PAGEFLEET_MODEL).
"""

from __future__ import annotations

from typing import Any

from pagefleet_contract.engine_metrics import Engine, metrics_from
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.runtimes import launch as common
from pagefleet_operator.domain.runtimes.adapter import Adapter
from pagefleet_operator.domain.runtimes.flags import drain_seconds
from pagefleet_operator.domain.runtimes.launch import Launch


def launch(child: Child, _release: str) -> Launch:
    engine, probes = child.spec.engine, child.spec.engine.probes
    port = ENGINE_PORT if engine.port is None else engine.port
    return Launch(
        image="",
        command=engine.command,
        args=(),
        drain=drain_seconds() + common.KNOWN_DELAY,
        env=(*common.caches(child.spec), *_told(child, port)),
        startup=probes.startup or probes.readiness,
        readiness=probes.readiness,
        liveness=probes.liveness or probes.readiness,
        stopping=engine.pre_stop,
        engine=Engine(port, metrics_from(engine.metrics) if engine.metrics else None),
        port=port,
    )


def _told(child: Child, port: int) -> list[dict[str, Any]]:
    spec, model = child.spec, child.spec.model
    values = {
        "PAGEFLEET_MODEL": common.model_path(model.source),
        "PAGEFLEET_MODEL_REVISION": common.hub_revision(model.source),
        "PAGEFLEET_SERVED_MODEL_NAME": common.served_name(child),
        "PAGEFLEET_PORT": port,
        "PAGEFLEET_MAX_MODEL_LEN": model.max_length,
        "PAGEFLEET_MAX_NUM_SEQS": spec.engine.scheduling.max_sequences,
        "PAGEFLEET_ACCELERATORS": spec.accelerators or None,
    }
    written = [common.plain(name, str(value)) for name, value in values.items() if value is not None]
    return [*written, *common.api_key(spec, "PAGEFLEET_API_KEY")]


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
