"""The pod templates of a revision stay as they were first applied, for as long as its workload lives.

A new version of the operator may have other defaults: the engine's image, flags, probes, details of the pod. They would
replace every pod of the fleet at once and without a canary. So a workload carries the templates that were applied in an
annotation, later decisions use those, and new defaults reach a service with its next revision.

Without the annotation (an operator before this one made the workload, or the templates are too long for it) they are the
fields of the live object that our field manager has applied.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pagefleet_contract.names import APPLIED_ANNOTATION, OPERATOR, TEMPLATES_ANNOTATION
from pagefleet_operator.domain.base.json_text import sorted_json
from pagefleet_operator.domain.manifests import ownership

Templates = Mapping[str, Any]
GROUP = "leaderWorkerTemplate"  # in the spec of a LeaderWorkerSet
NAMES = ("template", "leaderTemplate", "workerTemplate")
MAX_BYTES = 64 << 10  # of the annotation; an object's annotations are limited to 256 KiB together


def templates(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The pod templates of a Deployment or LeaderWorkerSet by name; {} for other kinds."""
    holder = _holder(manifest)
    return {name: holder[name] for name in NAMES if isinstance(holder.get(name), Mapping)}


def stamp(manifest: dict[str, Any]) -> None:
    """Write the manifest's digest into it, so that leaving a field out one day counts as drift too. A workload also gets
    its pod templates, from which later decisions take them."""
    digest = hashlib.sha256(sorted_json(manifest)).hexdigest()[:16]
    text = annotation(manifest)
    annotations = {APPLIED_ANNOTATION: digest, **({TEMPLATES_ANNOTATION: text} if text else {})}
    given = manifest["metadata"].get("annotations") or {}
    manifest["metadata"] = {**manifest["metadata"], "annotations": {**given, **annotations}}


def annotation(manifest: Mapping[str, Any]) -> str:
    """The annotation's text; "" for other kinds, and where it would be too long."""
    made = templates(manifest)
    text = sorted_json(made) if made else b""
    return text.decode() if len(text) <= MAX_BYTES else ""


def applied(live: Mapping[str, Any]) -> Templates | None:
    """The templates that were applied to a live workload; None where there is no record of them."""
    metadata, fields = live["metadata"], ownership.our_fields(live, OPERATOR)
    text = (metadata.get("annotations") or {}).get(TEMPLATES_ANNOTATION, "")
    written = {"metadata": {"annotations": {TEMPLATES_ANNOTATION: text}}}
    if text and (fields is None or not ownership.lost(written, fields)):  # nobody else has changed it
        read = _read(text)
        if read is not None:
            return read
    # Every template that we apply names its images: without one, somebody else owns that field now.
    extracted = templates(ownership.owned(live, fields)) if fields else {}
    return extracted if extracted and all(_images(extracted.get(name)) for name in templates(live)) else None


def with_templates(manifest: Mapping[str, Any], stored: Templates | None) -> dict[str, Any]:
    """The manifest of a workload with the stored templates in place of its own."""
    replaced = {name: copy.deepcopy(stored[name]) for name in templates(manifest) if name in stored} if stored else {}
    if not replaced:
        return dict(manifest)
    holder = {**_holder(manifest), **replaced}
    spec = manifest["spec"]
    return {**manifest, "spec": {**spec, GROUP: holder} if GROUP in spec else holder}


def difference(manifest: Mapping[str, Any], stored: Templates | None) -> str:
    """The first field in which the stored templates differ from those of the manifest; "" when none does."""
    fresh = templates(manifest)
    if stored is None:
        return ""
    changed = ownership.rewritten(fresh, stored)
    removed = ownership.rewritten(stored, fresh).partition(" is ")[0]
    return changed or (f"{removed} is not written any more" if removed else "")


def _holder(manifest: Mapping[str, Any]) -> Any:
    """The object that has the templates."""
    spec = manifest.get("spec") or {}
    return spec.get(GROUP) or spec


def _read(text: str) -> Templates | None:
    try:
        read = json.loads(text)
    except ValueError:
        return None
    readable = isinstance(read, dict) and read and all(_images(template) for template in read.values())
    return read if readable else None


def _images(template: Any) -> bool:
    """Whether every container of a template has an image."""
    spec = template.get("spec") if isinstance(template, Mapping) else None
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if not isinstance(containers, list) or not containers:
        return False
    return all(isinstance(one, Mapping) and one.get("image") for one in containers)
