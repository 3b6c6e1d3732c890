"""Checkpoints on disk: safetensors and GGUF files, their configuration, their quantisation, their tensors one at a time.

Decides which files and tensors are a model, or names the field of the spec to fix.
Never computes a forward pass.
"""
