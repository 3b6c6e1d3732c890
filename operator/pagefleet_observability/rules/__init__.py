"""Prometheus rules as values: recordings, alerts, and the metric names of every engine.

Decides what is recorded and what alerts.
Never reads a cluster.
"""
