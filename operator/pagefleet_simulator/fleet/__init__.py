"""The simulated fleet: engines, pods, the gateway, requests, and the profile of a replica.

It decides how long a step takes, when a pod is ready and which pod is deleted.
It never decides how many replicas there are (`scalers` do).
"""
