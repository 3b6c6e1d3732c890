"""Models: the forward pass, rotary embeddings, LoRA adapters; checkpoints and text have rooms of their own.

Decides how logits follow from tokens and KV pages.
Never schedules and never samples.
"""
