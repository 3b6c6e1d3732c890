"""The parts of bench/scaling_cluster.py: the local fleet as clients and the API server report it.

Decides how each moment of a scale-up, a wake-up, a scale-down and a drain is measured.
Never leaves a service behind.
"""
