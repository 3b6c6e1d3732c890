"""One rank's part of a model on a device: its shard of the weights, its matrix products, its forward pass.

Decides which rows and columns a rank holds.
Never schedules.
"""
