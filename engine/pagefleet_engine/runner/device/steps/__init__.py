"""One step on a device: its numbers, the state that stays on the device between steps, decode graphs, the launch.

Decides how a step is padded, captured and launched.
Never decides what a step computes.
"""
