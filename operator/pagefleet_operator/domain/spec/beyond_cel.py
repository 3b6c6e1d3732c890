"""The rules of `.spec` that stay in Python, because the API server's CEL cannot state them.

- Cron expressions and time zones: CEL has no calendar.
- What replicas cost, and the periods and percentages of scaling policies: CEL reads no "15%", and the cost needs the
  defaults of several objects.
- Weights that rise, previews before weights: CEL's macros see one entry of a list, not its neighbour.
- The size of the parts that a status remembers of each revision: CEL does not see JSON.
- Amounts of memory: the CEL of Kubernetes before 1.29 reads no quantity.
- Models that would lie at one path in a pod: CEL does not make the path's name from a URI.
- Names of headers, labels and annotations: the cost of a rule over the keys of a map has no bound, so the API server would
  refuse the CRD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pagefleet_contract.headers import RESERVED_PREFIXES
from pagefleet_contract.names import GROUP, MANAGED_LABEL, NAME_LABEL
from pagefleet_contract.quantity import amount, seconds
from pagefleet_operator.domain.base.revision import POD_AFFECTING, snapshot
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.base.stored_size import MAX_MATCH_BYTES, MAX_SNAPSHOT_BYTES, size
from pagefleet_operator.domain.runtimes import uris
from pagefleet_operator.domain.spec import schedule
from pagefleet_operator.domain.spec.schema.cost import cost
from pagefleet_operator.domain.spec.schema.patterns import HEADER_NAME, LABEL_NAME
from pagefleet_operator.domain.spec.schema.structure import SpecError, at

MAX_PERIOD_SECONDS = 1800.0
LEAST_MEMORY = 1 << 20  # bytes; with less no container starts, and with 0 it has no limit
OWN_LABELS, OWN_PREFIX = (MANAGED_LABEL, NAME_LABEL), f"{GROUP}/"


def errors(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    """Errors of a spec whose structure holds and whose defaults are filled in."""
    yield from _schedule(at(spec, ("scaling", "schedule")) or ())
    yield from _policies(spec)
    yield from _ceiling(spec)
    yield from _budget(at(spec, ("cost", "budget")) or {})
    yield from _steps(at(spec, ("rollout", "steps")) or ())
    yield from _headers(spec)
    yield from _label_names(spec)
    yield from _memory(at(spec, ("resources",)) or {})
    yield from _cache(at(spec, ("model", "cache")) or {})
    yield from _paths(spec)
    yield from _sizes(spec)


def _paths(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    """Two sources that are fetched to one path: the engine would load the same files for both."""
    known: dict[str, tuple[str, str]] = {}
    model = revision_spec(spec).model
    for field, source in uris.sources(model):
        if uris.brought(source, model):
            other, before = known.setdefault(uris.link_name(source), (field, source))
            if before != source:
                yield SpecError(
                    field,
                    f"{source} and {before} ({other}) would both lie at {uris.FETCHED}/{uris.link_name(source)}; "
                    "put one of them at another path",
                )


def _sizes(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    """A revision's part of the spec is stored in the status, so that it can be gone back to, and so are alerts."""
    if (stored := size(at(spec, ("rollout", "alerts", "matchLabels")) or {})) > MAX_MATCH_BYTES:
        yield SpecError("spec.rollout.alerts.matchLabels", f"takes {stored} bytes of JSON; at most {MAX_MATCH_BYTES}")
    remembered = snapshot(spec)
    if (stored := size(remembered)) > MAX_SNAPSHOT_BYTES:
        *first, last = (f"spec.{name}" for name in POD_AFFECTING)
        largest = max(remembered, key=lambda name: size(remembered[name]))
        yield SpecError(
            f"spec.{largest}",
            f"{', '.join(first)} and {last} take {stored} bytes of JSON together; at most {MAX_SNAPSHOT_BYTES} fit into the "
            "status, which remembers them for a rollback: put long texts into a ConfigMap",
        )


def _schedule(entries: Sequence[Mapping[str, Any]]) -> Iterator[SpecError]:
    for index, entry in enumerate(entries):
        for field, message in schedule.errors(entry["cron"], entry["timeZone"]):
            yield SpecError(f"spec.scaling.schedule[{index}].{field}", message)


def _policies(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    for direction in ("scaleUp", "scaleDown"):
        for index, policy in enumerate(at(spec, ("scaling", direction, "policies")) or ()):
            where = f"spec.scaling.{direction}.policies[{index}]"
            if not 0 < seconds(policy["period"]) <= MAX_PERIOD_SECONDS:
                yield SpecError(f"{where}.period", "must be above 0s and at most 30m")
            if direction == "scaleDown" and policy["type"] == "Percent" and policy["value"] > 100:
                yield SpecError(f"{where}.value", "must be at most 100 percent")


def _budget(budget: Mapping[str, Any]) -> Iterator[SpecError]:
    for field, message in schedule.errors("0 0 1 * *", budget.get("timeZone", "UTC")):
        yield SpecError(f"spec.cost.budget.{field}", message)


def _ceiling(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    scaling, limits = spec["scaling"], cost(spec.get("cost", {}))
    pods = revision_spec(spec)
    each, ceiling = limits.of_replica(pods), limits.ceiling_per_hour
    least = max(1, scaling["min"]) + scaling.get("warmSpares", 0) + pods.prefill_replicas
    if each is not None and ceiling is not None and each * least > ceiling:
        yield SpecError(
            "spec.cost.ceilingPerHour",
            f"must be at least {each * least:g}, the cost of spec.scaling.min replicas, the warm spares and the prefill pods",
        )


def _steps(steps: Sequence[Mapping[str, Any]]) -> Iterator[SpecError]:
    weights = [step["weight"] for step in steps if "weight" in step]
    if weights != sorted(weights):
        yield SpecError("spec.rollout.steps", f"weights must rise, not {', '.join(map(str, weights))}")
    kinds = ["preview" if "preview" in step else "weight" for step in steps if "preview" in step or "weight" in step]
    if kinds != sorted(kinds):
        yield SpecError("spec.rollout.steps", "preview must come before the first weight")


def _headers(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    """Names that no request can have."""
    for index, entry in enumerate(at(spec, ("traffic", "priorities")) or ()):
        for name in entry["header"]:
            where = f"spec.traffic.priorities[{index}].header"
            yield from _misnamed(where, name)
            yield from _reserved(where, name)
    for index, entry in enumerate(at(spec, ("traffic", "rateLimits")) or ()):
        yield from _reserved(f"spec.traffic.rateLimits[{index}].header", entry["header"])
    yield from _reserved("spec.traffic.queue.tenantHeader", at(spec, ("traffic", "queue", "tenantHeader")) or "")
    yield from _route(at(spec, ("rollout", "route")) or {}, foreign=at(spec, ("traffic", "provider")) == "GatewayAPI")


def _route(route: Mapping[str, Any], *, foreign: bool) -> Iterator[SpecError]:
    """Headers by which no request would reach a canary, or that no HTTPRoute may have. A `foreign` gateway removes none of them."""
    where = "spec.rollout.route.header"
    for name, value in (route.get("header") or {}).items():
        yield from _misnamed(where, name)
        if not value:
            yield SpecError(where, f"{name[:60]!r} needs a value")
        if not foreign:
            yield from _reserved(where, name)
    if not foreign:
        yield from _reserved("spec.rollout.route.stickyBy", route.get("stickyBy", "").removeprefix("header/"))


def _misnamed(where: str, name: str) -> Iterator[SpecError]:
    if not re.fullmatch(HEADER_NAME, name):
        yield SpecError(where, f"{name[:60]!r} is not a header name; allowed are letters, digits and -")


def _label_names(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    """Names of spec.pod that no object can have, or that are the operator's own."""
    for kind in ("labels", "annotations"):
        for name in at(spec, ("pod", kind)) or ():
            if not re.fullmatch(LABEL_NAME, name):
                form = "letters, digits, -, _ and ., at most 63, after a prefix such as example.com/ where it has one"
                yield SpecError(f"spec.pod.{kind}", f"{name[:60]!r} is not a name of {kind}; allowed are {form}")
            elif name in OWN_LABELS or name.startswith(OWN_PREFIX):
                yield SpecError(f"spec.pod.{kind}", f"{name!r} is written by the operator")


def _cache(cache: Mapping[str, Any]) -> Iterator[SpecError]:
    """A cache that can hold nothing."""
    if amount(cache.get("size", "1")) < 1:
        yield SpecError("spec.model.cache.size", f"must be at least one byte, such as 500Gi, not {cache['size']}")


def _memory(resources: Mapping[str, Any]) -> Iterator[SpecError]:
    """Amounts that a pod cannot have."""
    if 0 < amount(memory := resources["memory"]) < LEAST_MEMORY:
        message = f"must be at least 1Mi, such as 4Gi, not {memory}: without a unit it is bytes, and m stands for thousandths of one"
        yield SpecError("spec.resources.memory", message)
    shared = resources.get("sharedMemory")
    if shared is not None and not 0 < amount(shared) <= amount(resources["memory"]):
        message = f"must be above 0 and at most spec.resources.memory, {resources['memory']}, of which it is a part"
        yield SpecError("spec.resources.sharedMemory", message)
    for page, memory in (resources.get("hugePages") or {}).items():
        if not amount(memory) or amount(memory) % amount(page):
            yield SpecError(f"spec.resources.hugePages.{page}", f"must be one or more whole pages of {page}")


def _reserved(where: str, name: str) -> Iterator[SpecError]:
    if name.lower().startswith(RESERVED_PREFIXES):
        yield SpecError(
            where, f"{name[:60]!r}: the gateway removes headers that begin with {', '.join(RESERVED_PREFIXES)}"
        )
