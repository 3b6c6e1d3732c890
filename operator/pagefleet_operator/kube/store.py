"""The objects that watches and lists have reported, by kind and service.

Decisions read objects here and not from the API server, so that a thousand idle services cost it nothing. Every write
that follows from an object names the resourceVersion that was read here.

A watch reports changes only. An object that vanished while a watch was broken is reported by nobody, so whole lists are
compared from time to time (`replace_listed`), and objects that they lack are removed. Versions of one object are compared as numbers, so that a slow list or a late event
never replaces what is newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pagefleet_contract.model_name import served_name
from pagefleet_contract.names import KIND, PREFILL_LABEL, SERVICE_LABEL, WORKER_LABEL

Document = dict[str, Any]
ObjectKey = tuple[str, str, str]  # kind, namespace, name
ServiceKey = tuple[str, str]  # namespace and name of an InferenceService
MAX_TOMBSTONES = 10_000


def version_of(document: Mapping[str, Any]) -> int:
    """The resourceVersion as a number; 0 when there is none."""
    text = str((document.get("metadata") or {}).get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0


class Store:
    def __init__(self) -> None:
        self._objects: dict[ObjectKey, Document] = {}
        self._owned: dict[tuple[str, str, str], set[str]] = {}  # kind, namespace, service -> names
        self._serving: dict[str, set[ServiceKey]] = {}  # served name -> services
        self._gone: dict[ObjectKey, int] = {}  # the version at which an object went
        self._refused: dict[ServiceKey, dict[str, str]] = {}  # by child, since this operator last applied them

    def upsert(self, kind: str, document: Document, *, deleted: bool = False) -> None:
        """Store an object from an event, or from the API server's answer to a write, unless a newer version is known."""
        metadata = document["metadata"]
        key, version = (kind, metadata.get("namespace", ""), metadata["name"]), version_of(document)
        known = self._objects.get(key)
        if version < max(version_of(known) if known else 0, self._gone.get(key, 0)):
            return
        if deleted:
            self.remove(kind, key[1], key[2], version)
            return
        self._forget_index(key)
        self._objects[key] = document
        if kind == KIND and (served := served_name(document)):
            self._serving.setdefault(served, set()).add(key[1:])
        if owner := _owner(kind, document):
            self._owned.setdefault((kind, key[1], owner), set()).add(key[2])

    def remove(self, kind: str, namespace: str, name: str, version: int = 0) -> None:
        """Remove an object that was deleted at `version`; 0 stands for the version that is known."""
        key = (kind, namespace, name)
        self._forget_index(key)
        known = self._objects.pop(key, None)
        self._gone[key] = max(version, version_of(known) if known else 0)
        if kind == KIND:
            self._refused.pop(key[1:], None)
        while len(self._gone) > MAX_TOMBSTONES:
            del self._gone[next(iter(self._gone))]

    def replace_listed(
        self, kind: str, documents: Iterable[Document], version: int, namespaces: Iterable[str] = ()
    ) -> tuple[set[ObjectKey], list[ObjectKey]]:
        """Store a whole list that was taken at `version`.

        Returns the keys that changed, and the keys that the list lacks and that are not newer than it. The latter are
        gone from the cluster; the caller removes them once it has looked up their owners.
        """
        present, scope, changed, gone = set(), set(namespaces), set[ObjectKey](), list[ObjectKey]()
        for document in documents:
            metadata = document["metadata"]
            key = (kind, metadata.get("namespace", ""), metadata["name"])
            present.add(key)
            known = self._objects.get(key)
            self.upsert(kind, document)
            if self._objects.get(key) is not known:
                changed.add(key)
        for key, known in list(self._objects.items()):
            within = key[0] == kind and (not scope or key[1] in scope)
            if within and key not in present and version_of(known) <= version:
                gone.append(key)
        return changed, gone

    def refused(self, service: ServiceKey) -> Mapping[str, str] | None:
        """Why the API server refuses children of a service, by child; None before this operator has applied any."""
        return self._refused.get(service)

    def note_refused(self, service: ServiceKey, refused: Mapping[str, str]) -> None:
        """Remember what the API server refuses of a service's children now, all of them."""
        self._refused[service] = dict(refused)

    def find(self, kind: str, namespace: str, name: str) -> Document | None:
        return self._objects.get((kind, namespace, name))

    def is_edited(self, namespace: str, name: str) -> bool:
        """Return whether a service's spec has changed since the last decision about it."""
        service = self.find(KIND, namespace, name) or {}
        observed = (service.get("status") or {}).get("observedGeneration")
        return bool(service) and service["metadata"].get("generation") != observed

    def children(self, kind: str, namespace: str, service: str) -> list[Document]:
        """Objects labelled as the service's, by name."""
        names = sorted(self._owned.get((kind, namespace, service), ()))
        return [self._objects[kind, namespace, name] for name in names]

    def serving(self, name: str) -> list[ServiceKey]:
        """Return the InferenceServices that serve under `name`, sorted."""
        return sorted(self._serving.get(name, ()))

    def names(self, kind: str) -> list[tuple[str, str]]:
        """Namespace and name of every object of a kind, sorted."""
        return sorted(key[1:] for key in self._objects if key[0] == kind)

    def owner(self, key: ObjectKey) -> str:
        """The service that an object is labelled with; "" when it is unknown or labelled with none."""
        known = self._objects.get(key)
        return _owner(key[0], known) if known is not None else ""

    def _forget_index(self, key: ObjectKey) -> None:
        known = self._objects.get(key)
        if known is not None and key[0] == KIND and (served := served_name(known)):
            services = self._serving.get(served, set())
            services.discard(key[1:])
            if not services:
                self._serving.pop(served, None)
        if known is not None and (owner := _owner(key[0], known)):
            names = self._owned.get((key[0], key[1], owner), set())
            names.discard(key[2])
            if not names:
                self._owned.pop((key[0], key[1], owner), None)


def _owner(kind: str, document: Mapping[str, Any]) -> str:
    """The service that a child, or a pod that works for one, is labelled with."""
    labels = document["metadata"].get("labels") or {}
    names = (labels.get(label) for label in (SERVICE_LABEL, WORKER_LABEL, PREFILL_LABEL))
    return "" if kind == KIND else next((str(name) for name in names if name), "")
