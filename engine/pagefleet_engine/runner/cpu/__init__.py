"""The engine on CPUs: weights, KV pages and the scheduler behind add, abort and step.

Decides how a batch is laid out and how many KV pages memory allows.
Never does I/O after its start.
"""
