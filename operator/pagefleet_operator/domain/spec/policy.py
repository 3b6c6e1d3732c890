"""The operator's own limits on what an InferenceService may name: images, Secrets, ConfigMaps, claims, accounts, by glob.

Whoever may create an InferenceService can run any image in the namespace with any Secret, ConfigMap and claim of the
namespace in it. An administrator who wants less sets these lists. Without a list everything is allowed. A spec that names
something else is treated like any other that cannot be used: pods stay as they are, a condition and an Event name the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pagefleet_operator.domain.base.revision_spec import RevisionSpec, revision_spec
from pagefleet_operator.domain.runtimes.uris import OCI, PVC, image, sources
from pagefleet_operator.domain.spec.schema.structure import SpecError

Globs = tuple[str, ...] | None  # None: everything is allowed; (): nothing is


@dataclass(frozen=True)
class Policy:
    """What specs may name. The default image of a runtime is always allowed: the operator chooses it."""

    images: Globs = None
    secrets: Globs = None
    config_maps: Globs = None
    claims: Globs = None
    service_accounts: Globs = None


EVERYTHING = Policy()
# The environment variable of the operator that sets each list.
VARIABLES: Mapping[str, str] = {
    "images": "PAGEFLEET_ALLOWED_IMAGES",
    "secrets": "PAGEFLEET_ALLOWED_SECRETS",
    "config_maps": "PAGEFLEET_ALLOWED_CONFIGMAPS",
    "claims": "PAGEFLEET_ALLOWED_CLAIMS",
    "service_accounts": "PAGEFLEET_ALLOWED_SERVICEACCOUNTS",
}


def from_environment(environment: Mapping[str, str]) -> Policy:
    """Globs apart by commas or blanks. A variable that is set and empty allows nothing."""
    lists = {name: environment.get(variable) for name, variable in VARIABLES.items()}
    return Policy(
        **{name: None if text is None else tuple(text.replace(",", " ").split()) for name, text in lists.items()}
    )


def refusals(policy: Policy, spec: Mapping[str, Any]) -> list[SpecError]:
    """One error for each name in a spec, whose structure holds, that the policy does not allow."""
    return [
        SpecError(
            field, f"{value!r} is not allowed in this cluster; {_allowed(getattr(policy, kind), VARIABLES[kind])}"
        )
        for kind, field, value in named(spec)
        if not _allows(getattr(policy, kind), value)
    ]


def named(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Everything that a spec names: the policy's list, the field and the name."""
    view = revision_spec(spec)
    model, engine = view.model, view.engine
    given = (
        ("images", "spec.engine.image", engine.image),
        ("secrets", "spec.engine.apiKeySecretRef.name", engine.api_key.name if engine.api_key else ""),
        (
            "config_maps",
            "spec.model.chatTemplate.configMapKeyRef.name",
            model.chat_template.name if model.chat_template else "",
        ),
        ("claims", "spec.model.cache.claim", model.cache_claim),
        ("service_accounts", "spec.pod.serviceAccountName", view.pod.service_account_name),
    )
    yield from (entry for entry in given if entry[2])
    yield from _named_by_pods(view)
    for field, source in sources(model):
        if source.startswith(PVC):
            yield "claims", field, source.removeprefix(PVC).partition("/")[0]
        elif source.startswith(OCI):
            yield "images", field, image(source)


def _named_by_pods(view: RevisionSpec) -> Iterator[tuple[str, str, str]]:
    """What variables and pulls name."""
    for index, entry in enumerate(view.pod.image_pull_secrets):
        yield "secrets", f"spec.pod.imagePullSecrets[{index}].name", entry["name"]
    for index, variable in enumerate(view.engine.env):
        place: Mapping[str, Any] = variable.get("valueFrom") or {}
        for kind, reference in (("secrets", "secretKeyRef"), ("config_maps", "configMapKeyRef")):
            if found := place.get(reference):
                yield kind, f"spec.engine.env[{index}].valueFrom.{reference}.name", found["name"]


def _allows(globs: Globs, name: str) -> bool:
    return globs is None or any(fnmatchcase(name, glob) for glob in globs)


def _allowed(globs: Globs, variable: str) -> str:
    return (
        f"allowed are {', '.join(globs)} ({variable} of the operator)"
        if globs
        else f"none is ({variable} of the operator)"
    )
