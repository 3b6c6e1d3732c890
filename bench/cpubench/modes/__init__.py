"""The four measurements of engine_cpu.py: all requests at once, at rates, one after the other, and prompt lookup on real text.

Each starts its systems in rounds and shows its table. Their targets are data in `cpubench.targets`.
"""
