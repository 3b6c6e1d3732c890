"""The picker beside Envoy: it chooses the revision and the pod of each request, and measures the answers.

Decides weights per request, pod choice, holding and limits.
Never proxies bytes (Envoy does) and never writes to the API server.
"""
