"""What an engine must say of itself so that the operator can run it: one Adapter for each value of spec.engine.runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pagefleet_contract.engine_metrics import EngineMetrics
from pagefleet_contract.engine_options import HEAD
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import RevisionSpec
from pagefleet_operator.domain.runtimes.launch import Launch
from pagefleet_operator.domain.runtimes.node import Node, NodeLaunch

HEADS = ("eagle", HEAD)  # methods of speculation by heads
SLOTS = ("engine", "scheduling", "maxSequences")
TOKENS_PER_STEP = ("engine", "scheduling", "tokensPerStep")


def no_node_flags(_: RevisionSpec, __: Node) -> NodeLaunch:
    """For an engine whose groups of pods need no flags of their own."""
    return NodeLaunch()


@dataclass(frozen=True)
class Sleep:
    """How the engine of a warm spare (spec.scaling.warmSpares) can sleep, at the routes that the contract names.

    `accelerators` are beginnings of the names of accelerators on which it can, () where it can on any and on the CPU.
    `guarded`: what opens the routes of sleep opens others to everybody too. Such an engine listens on the pod's loopback alone, and the
    routing sidecar lets through what is meant for others. It is started with `flags` and `variables` beside those of a replica, and
    `metric` selects the number that is above 0 while it sleeps.
    """

    accelerators: tuple[str, ...] = ()
    guarded: bool = False
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    metric: str = ""


@dataclass(frozen=True)
class Split:
    """How prompts can be computed by pods of their own (spec.engine.disaggregation).

    `protocol` is that of the two legs, as the routing sidecar knows it. `of_prefill` takes the arguments of a decode pod's engine and
    returns those of a prefill pod's. `computes_all`: decode pods compute no prompt themselves, so prefill pods compute every one.
    """

    protocol: str
    of_prefill: Callable[[Iterable[str]], list[str]]
    computes_all: bool = False


@dataclass(frozen=True)
class Adapter:
    """One engine that a revision may run on. Fields of the spec are named by their path below `spec`.

    `launch` takes the child object's names and the operator's version. `node_launch` takes a revision's spec and a
    pod's place in its group. `images` are the default images by the accelerator's resource name ("" without one); None
    stands for an engine whose image is chosen by `launch`. `owned_flags` are flags that only the operator writes, with the
    field that sets each ("" where no field does). `shared_flags` may stand in engine.args instead of their field.
    `slots_flag` sets how many sequences a replica runs at once, `slots` is the number without the flag,
    by the accelerator's resource name ("" without one; not known for others).
    `unsupported` names fields that are refused; of a field with values, only these values are refused.
    `required` names fields that must be given, `own_fields` those that no other engine has.
    `reads_packages`: whether model sources may be python:// URIs. `metrics` are the names of its metrics; None: the spec
    gives them (spec.engine.metrics). `several_nodes`: whether a replica may be several pods, and `splits_layers` whether a
    model may be split by layers. `page_tokens` are the tokens of each KV page that it reports; where that is None, they are those of
    engine.kvCache.pageSize, else `default_page_tokens` (None: not known). `fetches`: whether the engine itself fetches a model of the hub; for the others a container of the
    pod does so before. `sleep` is None where the engine cannot be a warm spare, `split` where its prompts are computed where its answers are.
    """

    name: str
    launch: Callable[[Child, str], Launch]
    node_launch: Callable[[RevisionSpec, Node], NodeLaunch] = no_node_flags
    images: Mapping[str, str] | None = None
    owned_flags: Mapping[str, str] = field(default_factory=dict)
    shared_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    slots_flag: str = ""
    slots: Mapping[str, int] = field(default_factory=dict)
    unsupported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    own_fields: tuple[str, ...] = ()
    reads_packages: bool = False
    metrics: EngineMetrics | None = None
    several_nodes: bool = True
    splits_layers: bool = False
    page_tokens: int | None = None
    default_page_tokens: int | None = None
    fetches: bool = False
    sleep: Sleep | None = None
    split: Split | None = None
