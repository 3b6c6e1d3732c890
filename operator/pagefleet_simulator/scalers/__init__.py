"""The scalers that a simulation can run: the operator's own, and the rules of other projects beside it.

Decides replica counts in a simulation.
Never sees more than a real scaler would.
"""
