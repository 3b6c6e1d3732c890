"""The engine process: which engine serves a configuration, and its loop.

Decides where a model runs (`cpu` or `device`).
Never speaks HTTP.
"""
