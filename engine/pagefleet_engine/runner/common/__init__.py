"""What the CPU's engine and the device's engine share: sampling, grammars, load, prompts, warm-up.

Decides which token follows from logits.
Never schedules.
"""
