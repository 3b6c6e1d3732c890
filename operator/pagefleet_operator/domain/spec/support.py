"""Fields that the operator cannot honour: flags and variables that it writes itself, sources that it cannot read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.runtimes.catalog import adapter_of
from pagefleet_operator.domain.runtimes.launch import flag_name
from pagefleet_operator.domain.spec.schema.structure import SpecError, at

ADAPTER_SCHEMES = ("pvc", "oci", "file")
CACHE_ENV = ("HF_HOME", "HF_HUB_CACHE")
OWNED_ENV = ("OMP_NUM_THREADS", "PAGEFLEET_TERMINATION_LOG", "HOME")


def check(spec: Mapping[str, Any]) -> list[SpecError]:
    """Errors of a spec whose structure holds."""
    return list(_check(spec))


def _check(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    given = revision_spec(spec)
    for index, adapter in enumerate(given.model.adapters):
        scheme = adapter.source.partition("://")[0]
        if scheme not in ADAPTER_SCHEMES:
            allowed = " or ".join(f"{name}://" for name in ADAPTER_SCHEMES)
            where = f"spec.model.adapters[{index}].source"
            yield SpecError(where, f"{scheme}:// is not supported for adapters yet; use {allowed}")
    engine = adapter_of(given)
    owned, shared = engine.owned_flags, engine.shared_flags
    for index, argument in enumerate(given.engine.args):
        flag = flag_name(argument)
        if flag in owned:
            instead = f"; set {owned[flag]}" if owned[flag] else ""
            yield SpecError(f"spec.engine.args[{index}]", f"{flag} is written by the operator{instead}")
        elif flag in shared and at(spec, shared[flag]) is not None:
            field = ".".join(("spec", *shared[flag]))
            yield SpecError(f"spec.engine.args[{index}]", f"{flag} is set by {field} too; remove one of them")
    for index, variable in enumerate(given.engine.env):
        if variable["name"] in CACHE_ENV and given.model.cache_claim:
            yield SpecError(
                f"spec.engine.env[{index}].name",
                "spec.model.cache sets where weights are stored too; remove one of them",
            )
        if variable["name"] in OWNED_ENV:
            yield SpecError(f"spec.engine.env[{index}].name", f"{variable['name']} is written by the operator")
