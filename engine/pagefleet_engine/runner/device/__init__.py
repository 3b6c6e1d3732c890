"""The engine on GPUs: the scheduler one step ahead of the device, ranks, decode graphs.

Decides how steps overlap.
Never changes what a step computes.
"""
