"""The simulated fleet: engines, pods, the gateway, requests, and the profile of a replica.

Decides how long a step takes and when a pod is ready.
Never scales (`scalers` do).
"""
