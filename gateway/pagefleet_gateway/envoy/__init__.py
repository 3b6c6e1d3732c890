"""Envoy's configuration and its process: listeners, routes, clusters, endpoints, time limits, TLS, tracing.

Decides how Envoy is configured.
Never chooses a revision or a pod.
"""
