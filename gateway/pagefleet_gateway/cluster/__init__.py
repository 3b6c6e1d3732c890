"""What the gateway knows of the cluster: services, revisions, pods, and what each engine reports about its load.

Decides nothing: it holds an immutable snapshot and the readers of Kubernetes objects.
Never picks a pod and never talks to the API server.
"""
