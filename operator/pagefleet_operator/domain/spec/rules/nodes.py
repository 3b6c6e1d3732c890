"""Rules of replicas that are several pods, of models that are split by layers, and of a service's name.

A revision's objects are named `SERVICE-REVISION`, with a revision of 8 characters. A Service's name is a DNS label: 63 characters at most,
and no dot. A group of pods is of two StatefulSets, named like the LeaderWorkerSet and, for the workers, with the replica's index. Their
controller writes that name and a hash of 10 characters into a label, which has 63 characters at most as well: pods of a longer name are
never made (kubernetes-sigs/lws, issue 410). A LeaderWorkerSet's name begins with a letter.

Kueue names a replica of several pods by the LeaderWorkerSet, and writes that name into a label of its pods, which has 63 characters at
most: `leaderworkerset-SERVICE-REVISION-INDEX-HASH`, with a revision of 8 characters and a hash of 5. Pods of a longer name never leave
their gates (kubernetes-sigs/kueue, issue 10032). Releases from July 2026 on take longer names; the rule is for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.runtimes.catalog import REGISTRY
from pagefleet_operator.domain.spec.rules.accelerator import CUDA, GPU
from pagefleet_operator.domain.spec.rules.evaluate import violations
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule, listed
from pagefleet_operator.domain.spec.schema.structure import SpecError

# In CEL: whether a replica is several pods, whether its layers are split, and the accelerators of a pod.
ADAPTERS = "has(self.model.adapters) && self.model.adapters.size() > 0"  # an empty list has none
SEVERAL = "has(self.engine) && has(self.engine.nodes) && self.engine.nodes > 1"
SPLIT = "has(self.engine) && has(self.engine.pipelineParallelSize) && self.engine.pipelineParallelSize > 1"
COUNT = "(has(self.resources) && has(self.resources.accelerator) ? self.resources.accelerator.count : 1)"
NODES = "(has(self.engine.nodes) ? self.engine.nodes : 1)"
QUEUE = "kueue.x-k8s.io/queue-name"
MAX_NAME = 54  # so that a Service's has 63 characters
MAX_GROUP_NAME = 41  # so that a LeaderWorkerSet's has 50 characters, up to ten replicas
MAX_QUEUED_NAME = 30  # so that a LeaderWorkerSet's has 39 characters, up to ten replicas
ONE_NODE = tuple(name for name, engine in REGISTRY.items() if not engine.several_nodes)
SEVERAL_NODES = tuple(name for name, engine in REGISTRY.items() if engine.several_nodes)
SPLITTING = tuple(name for name, engine in REGISTRY.items() if engine.splits_layers)

NODE_RULES = (
    Rule(
        (),
        "spec.engine.nodes",
        f"!({SEVERAL}) || !({RUNTIME} in {listed(ONE_NODE)})",
        f"runtime {', '.join(ONE_NODE)} runs on one node only; remove it, or use {', '.join(SEVERAL_NODES)}",
    ),
    Rule(
        (),
        "spec.engine.nodes",
        f"!({SEVERAL}) || {RUNTIME} != 'pagefleet' || ({GPU})",
        "runtime pagefleet shares a model between nodes with spec.resources.accelerator of the name nvidia.com/gpu only",
    ),
    Rule(
        (),
        "spec.engine.pipelineParallelSize",
        f"!({SPLIT}) || {RUNTIME} in {listed(SPLITTING)}",
        f"only the runtimes {' and '.join(SPLITTING)} split a model by layers; remove it: others share every layer",
    ),
    Rule(
        (),
        "spec.engine.pipelineParallelSize",
        f"!({SPLIT}) || {NODES} * {COUNT} % self.engine.pipelineParallelSize == 0",
        "must divide a replica's accelerators: spec.engine.nodes times spec.resources.accelerator.count",
    ),
    Rule(
        (),
        "spec.model.adapters",
        f"!({ADAPTERS}) || !({CUDA}) || !({SEVERAL}) || {RUNTIME} != 'pagefleet'",
        "are not supported on several nodes; remove them, or spec.engine.nodes",
    ),
)


def errors_of_name(name: str, spec: Mapping[str, Any], stable: str = "") -> list[SpecError]:
    """The errors of a service's name beside its spec, whose structure holds and whose defaults are filled in.

    A service that has a `stable` revision keeps a name that no Service can have: it serves, although that object is refused.
    """
    if len(name) <= MAX_QUEUED_NAME - 2 and name[:1].isalpha() and "." not in name:
        return []
    document = {"metadata": {"name": name}, "spec": spec, "status": {"stable": stable}}
    return list(violations(NAME_RULES, document))


# At the object's root, where a rule sees the object's own name. The digits of a replica's index shorten it.
_SPEC = SEVERAL.replace("self.", "self.spec.")
_MOST = "(has(self.spec.scaling) && has(self.spec.scaling.max) ? self.spec.scaling.max : 1)"
_DIGITS = f"({_MOST} > 100 ? 2 : {_MOST} > 10 ? 1 : 0)"
NAME_RULES = (
    Rule(
        (),
        "metadata.name",
        f"!({_SPEC}) || !has(self.spec.pod) || !has(self.spec.pod.labels) || !('{QUEUE}' in self.spec.pod.labels) || "
        f"self.metadata.name.size() <= {MAX_QUEUED_NAME} - {_DIGITS}",
        f"must have at most {MAX_QUEUED_NAME} characters (one less with spec.scaling.max above 10, two less above 100) with the label {QUEUE} "
        "and spec.engine.nodes above 1: Kueue has no room for a longer name in a label of its own",
    ),
    Rule(
        (),
        "metadata.name",
        f"(has(self.status) && has(self.status.stable) && self.status.stable != '') || "
        f"(self.metadata.name.size() <= {MAX_NAME} && !self.metadata.name.contains('.'))",
        f"must have at most {MAX_NAME} characters and no dot: a revision's Service is named by it, and its name is a DNS label",
    ),
    Rule(
        (),
        "metadata.name",
        f"!({_SPEC}) || self.metadata.name.size() <= {MAX_GROUP_NAME} - {_DIGITS}",
        f"must have at most {MAX_GROUP_NAME} characters (one less with spec.scaling.max above 10, two less above 100) with spec.engine.nodes "
        "above 1: the pods of a group have a label with it that has no room for a longer one",
    ),
    Rule(
        (),
        "metadata.name",
        f"!({_SPEC}) || self.metadata.name >= 'a'",
        "must begin with a letter with spec.engine.nodes above 1: LeaderWorkerSet refuses others",
    ),
)
