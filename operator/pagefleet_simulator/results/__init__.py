"""The outcome of simulated runs: sums, tables, plots.

It decides nothing and holds the numbers of finished runs.
It never runs a simulation.
"""
