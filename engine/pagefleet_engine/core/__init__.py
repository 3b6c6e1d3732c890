"""The engine's core in plain Python: page pool, prefix cache, scheduler, sequences, draft tokens.

Decides what each step computes.
Never imports torch, does I/O or reads a clock.
"""
