"""Holds every fact that operator, gateway, engine and local fleet share: names, headers, units, buckets, metrics, the list/watch loop.

Decides nothing.
Never imports a package of ours, and never torch, kopf, a server or a client of the Kubernetes API.
"""
