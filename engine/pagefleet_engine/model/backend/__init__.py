"""The transformers backend: causal text models without a family of ours, computed by transformers' code with our paged attention.

Decides which of transformers' models can be served so, and in what form their weights stay in memory.
Never runs code of a checkpoint, and imports transformers only when such a model is loaded.
"""
