"""What a registry's documents say: the URI of an artifact, its manifest, the pull secrets. Pure.

It decides which layers of a manifest are a model's, whether each is one file or an archive, and which credentials belong to which registry.
It never asks a registry, and it never reads or writes a file.
"""
