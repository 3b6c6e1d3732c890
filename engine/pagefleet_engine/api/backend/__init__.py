"""The API process's side of the engine process: the connection to it, the models it serves, the prompts
pinned in it, and the drain.

Decides when the engine process starts, is asked and ends.
Never computes a step.
"""
