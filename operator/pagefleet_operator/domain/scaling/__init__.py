"""Replica counts: how many replicas each revision should have, which pods are deleted first, and the warm spares.

It holds the signals, the demand that they add up to, and the rules that keep the replica count steady.
It never splits traffic and never writes to the cluster.
"""
