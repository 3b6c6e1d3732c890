"""The queue of requests that no pod can take now.

Decides which requests wait, which goes first and which is refused. Holds one fair queue per service.
Never chooses a pod.
"""
