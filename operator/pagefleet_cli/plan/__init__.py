"""`pagefleet plan`: the memory and accelerators that a model needs, by arithmetic.

Decides nothing.
Never asks a cluster and never fetches a model.
"""
