"""Prompts as picking sees them: what one costs, which pods have cached its beginning, and what of them each pod has still to compute.

Decides nothing: it holds estimates.
Never does I/O; the time is an argument.
"""
