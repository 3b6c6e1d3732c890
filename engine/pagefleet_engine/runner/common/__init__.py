"""The shared parts of the CPU's engine and the device's engine: sampling, grammars, load, prompts, warm-up.

Decides which token follows from logits.
Never schedules.
"""
