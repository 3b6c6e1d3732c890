"""Measurements that the operator reads: engines' metrics pages, gateways' windows, Prometheus.

It decides which numbers a reading holds and when a reading is too old; it holds the readings between two decisions.
It never judges a revision.
"""
