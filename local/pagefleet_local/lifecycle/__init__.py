"""Bringing the local cluster and the fleet on it up, and taking them down completely.

Decides the order in which parts start and end.
Never plays a scene.
"""
