"""What a simulated run came to: sums, tables, plots.

Decides nothing.
Never runs a simulation.
"""
