"""The part of `.spec` that pods are built from, as typed values: model, engine, resources, placement, pod.

`revision_spec` is total: a view can be made of any JSON, and a part that should be an object or a list and is none reads as
not given. Numbers and texts stay as they were given, because the flags that are written from them are part of a pod. None
or "" stands for a field that is not given and whose default is the engine's own.

The view is in this room and not beside the schema: the schema offers the engines that `runtimes` registers, and these read
the view.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

from pagefleet_operator.domain.base.json_text import decode, json_text

MAX_REMEMBERED = 4096
OURS = "pagefleet"  # the runtime that is Pagefleet's own engine
NVIDIA = "nvidia.com/gpu"  # an accelerator of this name selects our engine's CUDA image and its flags
T = TypeVar("T")


@dataclass(frozen=True)
class KeyReference:
    """One key of a ConfigMap or Secret in the service's namespace."""

    name: str = ""
    key: str = ""


@dataclass(frozen=True)
class Speculation:
    method: str = ""
    tokens: int | None = None
    model: str = ""


@dataclass(frozen=True)
class LoraAdapter:
    name: str = ""
    source: str = ""


@dataclass(frozen=True)
class Model:
    source: str = ""
    served_name: str = ""
    max_length: int | None = None
    quantization: str | None = None
    speculation: Speculation = Speculation()
    adapters: tuple[LoraAdapter, ...] = ()
    cache_claim: str = ""
    cache_size: str = ""
    oci: str = ""
    chat_template: KeyReference | None = None

    @property
    def fetches_images(self) -> bool:
        """Whether what oci:// URIs name is fetched; else it is mounted."""
        return self.oci == "Fetch"

    @property
    def drafting(self) -> Speculation | None:
        """The speculation that proposes draft tokens; None where the method is none or not given."""
        return None if self.speculation.method in ("", "none") else self.speculation


@dataclass(frozen=True)
class Limits:
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    queued: int | None = None
    queued_tokens: int | None = None
    answers: int | None = None


@dataclass(frozen=True)
class KVCache:
    page_size: int | None = None
    pages: int | None = None
    memory_fraction: float | None = None
    dtype: str | None = None
    prefix_caching: bool | None = None
    events: bool = False


@dataclass(frozen=True)
class Scheduling:
    policy: str | None = None
    max_sequences: int | None = None
    tokens_per_step: int | None = None
    chunk_tokens: int | None = None


@dataclass(frozen=True)
class Probes:
    """Paths of runtime custom."""

    startup: str = ""
    readiness: str = ""
    liveness: str = ""


@dataclass(frozen=True)
class Disaggregation:
    """Prefill and decode in pods of their own. `prefill_timeout` is a duration as it is given."""

    prefill_replicas: int = 1
    prefill_timeout: str = ""
    min_prompt_tokens: int | None = None


@dataclass(frozen=True)
class Engine:
    """`runtime` is the name as it is given, known or not; `runtimes.catalog` has what each runtime is.

    `pipeline_parallel_size` is the number of groups of layers. `refresh` stands in no pod: it makes another revision.
    `start_timeout` is a duration as it is given. The fields from `command` on are of runtime custom only.
    """

    runtime: str = OURS
    nodes: int = 1
    pipeline_parallel_size: int = 1
    image: str = ""
    refresh: str = ""
    start_timeout: str = ""
    args: tuple[str, ...] = ()
    env: tuple[Mapping[str, Any], ...] = ()
    limits: Limits = Limits()
    kv_cache: KVCache = KVCache()
    scheduling: Scheduling = Scheduling()
    api_key: KeyReference | None = None
    tool_call_parser: str | None = None
    disaggregation: Disaggregation | None = None
    command: tuple[str, ...] = ()
    port: int | None = None
    probes: Probes = Probes()
    pre_stop: tuple[str, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Accelerator:
    name: str = ""
    count: int = 1


@dataclass(frozen=True)
class Resources:
    """What each pod of a replica needs."""

    cpu: str = "1"
    memory: str = "4Gi"
    accelerator: Accelerator | None = None
    shared_memory: str = ""
    huge_pages: Mapping[str, str] = field(default_factory=dict)  # the memory by the size of a page


@dataclass(frozen=True)
class Placement:
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    topology_spread: bool = True
    topology_spread_constraints: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Pod:
    """What the cluster's rules ask of the pods, as of spec.pod."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[Mapping[str, str], ...] = ()
    service_account_name: str = ""
    priority_class_name: str = ""
    scheduler_name: str = ""
    runtime_class_name: str = ""
    resource_claims: tuple[Mapping[str, Any], ...] = ()


# AWS's resources for Trainium and Inferentia: whole devices with all their cores, or single cores.
NEURON, NEURON_CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"


@dataclass(frozen=True)
class RevisionSpec:
    model: Model
    engine: Engine
    resources: Resources
    placement: Placement
    pod: Pod

    @property
    def is_ours(self) -> bool:
        return self.engine.runtime == OURS

    @property
    def accelerator_name(self) -> str:
        """The resource's name; "" without accelerators."""
        return self.resources.accelerator.name if self.resources.accelerator else ""

    @property
    def accelerators(self) -> int:
        """Accelerators of each pod, of whatever kind; 0 without any."""
        return self.resources.accelerator.count if self.resources.accelerator else 0

    @property
    def gpus(self) -> int:
        """NVIDIA GPUs of each pod; 0 without any, or with accelerators of another kind."""
        return self.accelerators if self.accelerator_name == NVIDIA else 0

    @property
    def runs_cuda(self) -> bool:
        """Whether our CUDA image is chosen. An image that is given may be built for the CPU: it finds out by itself."""
        return self.gpus > 0 and not self.engine.image and self.is_ours

    @property
    def nodes(self) -> int:
        """Pods of each replica: above 1 it is a group of a LeaderWorkerSet."""
        return self.engine.nodes

    @property
    def prefill_replicas(self) -> int:
        """Prefill pods of a revision that has replicas; 0 without disaggregation."""
        return self.engine.disaggregation.prefill_replicas if self.engine.disaggregation else 0

    @property
    def tensor_parallel(self) -> int:
        """Accelerators that share each layer; 1 without accelerators."""
        return max(1, self.accelerators) * self.nodes // self.engine.pipeline_parallel_size


def revision_spec(raw: object) -> RevisionSpec:
    """The view of a spec, or of a revision's snapshot. The latest are remembered by the JSON that they are views of."""
    text = json_text(raw)
    return _view(raw) if text is None else _remembered(text)


@lru_cache(MAX_REMEMBERED)
def _remembered(text: bytes) -> RevisionSpec:
    return _view(decode(text))


def _view(raw: object) -> RevisionSpec:
    spec = _mapping(raw)
    return RevisionSpec(
        model=_model(_mapping(spec.get("model"))),
        engine=_engine(_mapping(spec.get("engine"))),
        resources=_resources(_mapping(spec.get("resources"))),
        placement=_read(Placement, spec.get("placement")),
        pod=_read(Pod, spec.get("pod")),
    )


def _model(raw: Mapping[str, Any]) -> Model:
    template = _mapping(raw.get("chatTemplate")).get("configMapKeyRef")
    return _read(
        Model,
        raw,
        speculation=_read(Speculation, raw.get("speculation")),
        adapters=tuple(_read(LoraAdapter, entry) for entry in _list(raw.get("adapters"))),
        cache_claim=_mapping(raw.get("cache")).get("claim", ""),
        cache_size=_mapping(raw.get("cache")).get("size", ""),
        chat_template=_read(KeyReference, template) if template else None,
    )


def _engine(raw: Mapping[str, Any]) -> Engine:
    return _read(
        Engine,
        raw,
        limits=_read(Limits, raw.get("limits")),
        kv_cache=_read(KVCache, raw.get("kvCache")),
        scheduling=_read(Scheduling, raw.get("scheduling")),
        api_key=_read(KeyReference, raw["apiKeySecretRef"]) if raw.get("apiKeySecretRef") else None,
        probes=_read(Probes, raw.get("probes")),
        disaggregation=_disaggregation(raw["disaggregation"]) if raw.get("disaggregation") else None,
    )


def _disaggregation(raw: object) -> Disaggregation:
    prefill = _mapping(_mapping(raw).get("prefill"))
    return _read(
        Disaggregation, raw, prefill_replicas=prefill.get("replicas", 1), prefill_timeout=prefill.get("timeout", "")
    )


def _resources(raw: Mapping[str, Any]) -> Resources:
    return _read(Resources, raw, accelerator=_read(Accelerator, raw["accelerator"]) if raw.get("accelerator") else None)


def _read(kind: Callable[..., T], raw: object, **given: Any) -> T:
    """Fill the fields of the dataclass `kind` that are not `given` from those of `raw` with the same names in camel case."""
    source, values = _mapping(raw), dict(given)
    for name, written in _names(kind):
        value = source.get(written)
        if name not in given and value is not None:
            values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


@lru_cache
def _names(kind: Any) -> tuple[tuple[str, str], ...]:
    """Each field of a dataclass as it is named in Python and in the spec: page_size, pageSize."""
    names = [one.name for one in fields(kind)]
    return tuple((name, re.sub("_([a-z])", lambda match: match[1].upper(), name)) for name in names)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
