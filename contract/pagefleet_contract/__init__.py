"""Holds every fact that operator, gateway, engine and local fleet share: names, headers, units, buckets, metrics, the list/watch loop.

Decides nothing.
Never imports a package of ours, and never torch, kopf or a server; the Kubernetes client only inside `reflector`.
"""
