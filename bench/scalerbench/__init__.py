"""The parts of bench/autoscaling.py: the traces and faults, the others' settings, the runs, and the judgement.

Decides which settings are run and when two scalers count as equal. Never tunes ours: it has one setting.
"""
