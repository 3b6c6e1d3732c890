"""Models: the forward pass, rotary embeddings, LoRA adapters. Checkpoints and text have packages of their own.

Decides how logits follow from tokens and KV pages.
Never schedules and never samples.
"""
