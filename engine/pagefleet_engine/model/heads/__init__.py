"""EAGLE-3 draft heads: the published formats, the forward pass on the CPU, and the served model's states that they need.

Decides which checkpoints of heads can be used, and which states of the served model a head reads.
Never decides how many tokens are drafted, and never accepts one.
"""
