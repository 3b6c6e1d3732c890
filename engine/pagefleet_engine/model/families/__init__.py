"""Model families: one module for each, and the registry with one line for each.

Decides what sets a family apart from Llama: its config.json, the names of its tensors, the options of its layers.
Never reads a file and never imports torch.
"""
