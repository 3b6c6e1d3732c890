"""A revision: the part of a spec that affects pods, its meaning, and its hash.

Two specs of one meaning have one hash. A quantity means its value (`cpu: 1000m` is `cpu: 1`), an empty list or map means what
leaving it out means (`env: []`), and so does a default that no engine chooses (`nodes: 1`).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pagefleet_contract.disaggregation import DEFAULT_MIN_PROMPT_TOKENS
from pagefleet_contract.quantity import canonical
from pagefleet_operator.domain.base.json_text import decode, json_text

POD_AFFECTING = ("model", "engine", "resources", "placement", "pod")
MAX_REMEMBERED = 4096
QUANTITIES = ("cpu", "memory", "sharedMemory")  # of `resources`
# What these fields are without a value, with any engine. Those that the schema has a default for are filled in, and are not among them.
DEFAULTS: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("engine", "nodes"), 1),
    (("engine", "pipelineParallelSize"), 1),
    (("engine", "kvCache", "events"), False),
    (("engine", "disaggregation", "minPromptTokens"), DEFAULT_MIN_PROMPT_TOKENS),
    (("model", "oci"), "Mount"),
)


def snapshot(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What pods are built from: scaling, rollout and traffic change without new pods."""
    return {name: raw[name] for name in POD_AFFECTING if name in raw}


def meaning(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The snapshot, written in the same way for all specs of its meaning. A spec that is written so stays as it is. The latest are
    remembered."""
    pods = snapshot(raw)
    text = json_text(pods)
    return _meant(pods) if text is None else _remembered_meaning(text)


@functools.lru_cache(MAX_REMEMBERED)
def _remembered_meaning(text: bytes) -> Mapping[str, Any]:
    return _meant(decode(text))


def _meant(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    for path, default in DEFAULTS:
        whole = _without_default(whole, path, default)
    return _alike(whole)


def _without_default(value: Any, path: tuple[str, ...], default: Any) -> Any:
    """The value without the field at the end of the path, where it is the default."""
    if not isinstance(value, Mapping) or path[0] not in value:
        return value
    name, *more = path
    if more:
        return {**value, name: _without_default(value[name], tuple(more), default)}
    is_default = type(value[name]) is type(default) and value[name] == default
    return {one: part for one, part in value.items() if one != name} if is_default else value


def _alike(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot with each quantity written in one way, and nothing empty."""
    pods = {name: _without_empty(part) for name, part in whole.items()}
    resources = pods.get("resources")
    if isinstance(resources, Mapping):
        pods["resources"] = {**resources, **_canonical(resources, QUANTITIES)}
        pages = resources.get("hugePages")
        if isinstance(pages, Mapping):
            pods["resources"]["hugePages"] = {**pages, **_canonical(pages, pages)}
    model = pods.get("model")
    if isinstance(model, Mapping) and isinstance(cache := model.get("cache"), Mapping):
        pods["model"] = {**model, "cache": {**cache, **_canonical(cache, ("size",))}}
    return {name: part for name, part in pods.items() if not _empty(part)}


def _canonical(amounts: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """Those of the amounts with these names that are texts, each as its value is written."""
    return {name: canonical(amounts[name]) for name in names if isinstance(amounts.get(name), str)}


def revision_hash(raw: Mapping[str, Any]) -> str:
    """The name of a new revision: the hash of the spec's meaning."""
    return _hash(meaning(raw))


def earlier_hashes(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that earlier operators gave a revision: the hash of the snapshot as it is written, and that of a meaning in which a
    default that is written counted."""
    pods = snapshot(raw)
    return _hash(pods), _hash(_alike(pods))


def _hash(pods: Mapping[str, Any]) -> str:
    """Eight hex digits of the canonical JSON. The latest are remembered."""
    text = json_text(pods)
    return _hashed(pods) if text is None else _remembered(text)


@functools.lru_cache(MAX_REMEMBERED)
def _remembered(text: bytes) -> str:
    return _hashed(decode(text))


def _hashed(pods: Mapping[str, Any]) -> str:
    text = json.dumps(pods, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _without_empty(value: Any) -> Any:
    """Without empty lists and maps in maps. The entries of lists stay: an entry's place and number have a meaning."""
    if not isinstance(value, Mapping):
        return value
    parts = {name: _without_empty(part) for name, part in value.items()}
    return {name: part for name, part in parts.items() if not _empty(part)}


def _empty(value: Any) -> bool:
    return isinstance(value, Mapping | list) and not value
