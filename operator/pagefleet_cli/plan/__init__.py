"""`pagefleet plan`: what a model needs of an accelerator, by arithmetic.

Decides nothing.
Never asks a cluster and never fetches a model.
"""
