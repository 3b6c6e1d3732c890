"""A cluster made by kind (Kubernetes in Docker), for machines with Docker; it plays the demo's scenes.

Decides kind's configuration and commands.
Never plays a scene by itself.
"""
