"""The picker beside Envoy: which revision and which pod a request meets, and what was measured.

Decides weights per request, pod choice, holding and limits.
Never proxies bytes (Envoy does) and never writes to the API server.
"""
