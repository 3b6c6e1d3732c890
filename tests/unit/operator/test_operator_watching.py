"""Protects the one thread of the operator: events are handled by coroutines (kopf runs a plain function in a thread of
its own, and hundreds of objects created at once then changed the queue while a worker looked through it). Protects also
what a watch asks the API server for: of child objects only those with our label, in chunks."""

from __future__ import annotations

import inspect

import kopf

from pagefleet_contract.reflector import CHUNK
from pagefleet_operator.kube.watching import configure, register


def test_events_are_handled_by_coroutines() -> None:
    registry = kopf.OperatorRegistry()
    register(registry, None, lambda kind, event, document: None)
    handlers = {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}
    assert set(handlers) == {
        "InferenceService",
        "Deployment",
        "Service",
        "PodDisruptionBudget",
        "Pod",
        "ControllerRevision",
    }
    assert all(inspect.iscoroutinefunction(function) for function in handlers.values())


def test_child_objects_are_asked_for_by_label_and_in_chunks() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    selectors = {
        selector.any_name or selector.plural: text for selector, text in settings.watching.label_selectors.items()
    }
    assert settings.watching.chunk_size == CHUNK
    ours = "app.kubernetes.io/managed-by=pagefleet"
    records = selectors.pop("controllerrevisions")
    assert records == f"{ours},app.kubernetes.io/name=pagefleet-revision-record"
    assert len(selectors) == 4
    assert set(selectors.values()) == {ours}
