"""Kubernetes objects as plain dicts, one builder for each kind: total functions of a revision's snapshot.

Decides what an object of ours says.
Never decides whether it should exist.
"""
