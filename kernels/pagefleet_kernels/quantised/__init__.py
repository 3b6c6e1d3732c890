"""Matrix products with quantised weights (AWQ, FP8) and the quantisation of activations.

Each operation lies beside its torch reference.
Never reads a checkpoint.
"""
