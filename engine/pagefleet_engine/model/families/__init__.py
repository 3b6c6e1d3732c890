"""Model families: a module for each, or for a few that are alike, and the registry with one line for each.

Decides what sets a family apart from Llama: its config.json, the names of its tensors, the options of its layers.
Never reads a file and never imports torch.
"""
