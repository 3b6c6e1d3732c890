"""Envoy's configuration and its process: listeners, routes, clusters, endpoints, timeouts, TLS, tracing.

Decides how Envoy is configured. Holds the names and the files that the picker and Envoy share.
Never chooses a revision or a pod.
"""
