"""The engine's HTTP API, in a process of its own beside the engine process.

Decides what a request asks and how its answer reads.
Never computes a step.
"""
