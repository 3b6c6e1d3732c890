"""Any other engine that speaks OpenAI's API: the spec says its image, command, port, probes and metrics.

What it may need of the rest of the spec comes as PAGEFLEET_* variables, which args can name as $(PAGEFLEET_MODEL). It fetches a model
of the hub by itself: which of the files it reads is not known here.
"""

from __future__ import annotations

from typing import Any

from pagefleet_contract.engine_metrics import Engine, metrics_from
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import Model
from pagefleet_operator.domain.runtimes import launch as common
from pagefleet_operator.domain.runtimes.adapter import Adapter
from pagefleet_operator.domain.runtimes.flags import drain_seconds
from pagefleet_operator.domain.runtimes.launch import Launch
from pagefleet_operator.domain.runtimes.uris import HUB, path_in_pod
from pagefleet_operator.domain.runtimes.volumes import CACHE_FOLDER


def launch(child: Child, _release: str) -> Launch:
    engine, probes = child.spec.engine, child.spec.engine.probes
    port = ENGINE_PORT if engine.port is None else engine.port
    return Launch(
        image="",
        command=engine.command,
        args=(),
        drain=drain_seconds() + common.KNOWN_DELAY,
        env=(*_caches(child), *_told(child, port)),
        startup=probes.startup or probes.readiness,
        readiness=probes.readiness,
        liveness=probes.liveness or probes.readiness,
        stopping=engine.pre_stop,
        engine=Engine(port, metrics_from(engine.metrics) if engine.metrics else None),
        port=port,
    )


def _caches(child: Child) -> tuple[dict[str, Any], ...]:
    """The variables that all engines have, with the spec's claim for what it fetches."""
    own = {"HF_HOME": CACHE_FOLDER} if child.spec.model.cache_claim else {}
    return tuple({**one, "value": own.get(one["name"], one["value"])} for one in common.caches(child.spec))


def _told(child: Child, port: int) -> list[dict[str, Any]]:
    spec, model = child.spec, child.spec.model
    values = {
        "PAGEFLEET_MODEL": _model_path(model),
        "PAGEFLEET_MODEL_REVISION": _hub_revision(model.source),
        "PAGEFLEET_SERVED_MODEL_NAME": common.served_name(child),
        "PAGEFLEET_PORT": port,
        "PAGEFLEET_MAX_MODEL_LEN": model.max_length,
        "PAGEFLEET_MAX_NUM_SEQS": spec.engine.scheduling.max_sequences,
        "PAGEFLEET_ACCELERATORS": spec.accelerators or None,
    }
    written = [common.plain(name, str(value)) for name, value in values.items() if value is not None]
    return [*written, *common.api_key(spec, "PAGEFLEET_API_KEY")]


def _model_path(model: Model) -> str:
    """A path, or a name on the hub without its revision."""
    source = model.source
    return source.removeprefix(HUB).partition("@")[0] if source.startswith(HUB) else path_in_pod(source, model)


def _hub_revision(source: str) -> str | None:
    return source.partition("@")[2] or None if source.startswith(HUB) else None


ADAPTER = Adapter(
    name="custom",
    launch=launch,
    fetches=True,
    required=("engine.image", "engine.probes"),
    own_fields=("engine.command", "engine.port", "engine.probes", "engine.preStop", "engine.metrics"),
    unsupported={
        "engine.disaggregation": (),
        "model.quantization": ("int8", "fp8", "awq"),
        "model.speculation": (),
        "model.adapters": (),
        "model.chatTemplate": (),
        "model.cache.size": (),
        "engine.kvCache.pageSize": (),
        "engine.kvCache.pages": (),
        "engine.kvCache.memoryFraction": (),
        "engine.kvCache.dtype": (),
        "engine.kvCache.prefixCaching": (),
        "engine.kvCache.events": (),
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
