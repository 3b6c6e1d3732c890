"""Protects the one thread of the operator: what watches tell is taken in by coroutines. kopf runs a plain function in a
thread of its own, and hundreds of objects created at once then changed the queue while a worker looked through it."""

from __future__ import annotations

import inspect

import kopf

from pagefleet_operator.kube.watching import _handlers


def test_events_are_heard_by_coroutines() -> None:
    registry = kopf.OperatorRegistry()
    _handlers(registry, lambda kind, event, document: None)
    heard = {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}
    assert set(heard) == {"InferenceService", "Deployment", "Service", "PodDisruptionBudget", "Pod"}
    assert all(inspect.iscoroutinefunction(function) for function in heard.values())
