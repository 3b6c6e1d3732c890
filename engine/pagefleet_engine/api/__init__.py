"""The engine's HTTP API, in a process of its own beside the engine process.

Decides what a request means and what its answer looks like.
Never computes a step.
"""
