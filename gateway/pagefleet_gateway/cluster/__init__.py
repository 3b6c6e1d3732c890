"""The cluster as the gateway knows it: services, revisions, pods, and the load that each engine reports.

Decides which pods may get requests. Holds an immutable snapshot and the readers of Kubernetes objects.
Never picks a pod and never talks to the API server.
"""
