"""Kubernetes objects as plain dicts, one builder for each kind: total functions of a revision's snapshot.

Decides the content of our objects.
Never decides whether an object should exist.
"""
