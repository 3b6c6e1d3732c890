"""The differential oracle (Sieve, OSDI'22): a run with faults must end in the same state, by the same number of
creations and deletions, as runs without any. Differences between two fault-free runs (times, uids, generated names) are
learned as a mask and left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.operator_process import USER
from support.rbac import events

Flat = dict[str, object]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
# These are no part of the state: the first and last writers and their counts, texts that people read as a log, and the
# whole seconds that a pod took to start.
IGNORED = ("managedFields", "resourceVersion", "decisions", "uid", "startup", "podIP", "podIPs")


@dataclass(frozen=True)
class Truth:
    """The expected results of every run: flattened states per chapter, the mask, creations and deletions."""

    states: Mapping[str, Flat]
    mask: frozenset[str]
    counts: Mapping[str, int]

    def differences(
        self, states: Mapping[str, Mapping[str, Any]], counts: Mapping[str, int], unheard: bool = False
    ) -> list[str]:
        """Return the differences of a run in words. `unheard`: the counts may lack some."""
        differences = []
        for chapter, state in self.states.items():
            other = flat(states[chapter])
            for path in sorted((set(state) | set(other)) - self.mask):
                if state.get(path) != other.get(path):
                    differences.append(f"{chapter}: {path}: {state.get(path)!r} -> {other.get(path)!r}")
        for key in sorted(set(self.counts) | set(counts)):
            expected, counted = self.counts.get(key, 0), counts.get(key, 0)
            if counted > expected or (counted < expected and not unheard):
                differences.append(f"{key}: {expected} -> {counted} times")
        return differences


def learn(
    one: Mapping[str, Mapping[str, Any]], other: Mapping[str, Mapping[str, Any]], counts: Mapping[str, int]
) -> Truth:
    """Learn the truth from two fault-free runs."""
    mask = set()
    states = {chapter: flat(state) for chapter, state in one.items()}
    for chapter, state in states.items():
        again = flat(other[chapter])
        mask |= {path for path in set(state) | set(again) if state.get(path) != again.get(path)}
    return Truth(states, frozenset(mask), counts)


def flat(state: Mapping[str, Any]) -> Flat:
    """Flatten documents to path -> leaf. Objects with generated names are numbered within their kind and revision."""
    leaves: Flat = {}
    for name, document in named(state):
        leaves.update({f"{name}{path}": value for path, value in _leaves(document, "")})
    return leaves


def named(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    counts: Counter[str] = Counter()
    for key in sorted(state):
        kind, _, name = key.partition("/")
        if kind in ("Pod", "ReplicaSet"):
            base = f"{kind}/{state[key]['metadata']['labels'].get('pagefleet.io/revision', name)}"
            counts[base] += 1
            yield f"{base}#{counts[base]}", state[key]
        else:
            yield key, state[key]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in IGNORED:
                yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            # Kubernetes' controllers write conditions in the order in which they came true.
            place = item["type"] if path.endswith(".conditions") else index
            yield from _leaves(item, f"{path}[{place}]")
    elif isinstance(value, str) and TIME.match(value):
        yield path, "a time"
    else:
        yield path, value


def counted(logs: Path, namespace: str) -> dict[str, int]:
    """Count creations and deletions by the operator in a namespace, from the API server's audit logs, in their order. Events do not
    count: they are for reading only. Server-side apply creates when it answers 201. Calls after the service's own deletion
    do not count either: a decision under way may then repair a child that the garbage collector has removed, and which it
    removes again."""
    counts: Counter[str] = Counter()
    for event in events(logs, namespace):
        reference = event.get("objectRef") or {}
        if (event["verb"], reference.get("resource")) == ("delete", "inferenceservices"):
            break
        if event["user"]["username"] != USER or reference.get("namespace") != namespace:
            continue
        code = (event.get("responseStatus") or {}).get("code")
        if reference.get("resource") == "events":
            continue
        if code == 201:
            counts[f"CREATE {reference['resource']}"] += 1
        elif event["verb"] == "delete" and code == 200:
            counts[f"DELETE {reference['resource']}"] += 1
    return dict(counts)
