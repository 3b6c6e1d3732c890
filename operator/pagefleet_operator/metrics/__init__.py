"""Measurements read by the operator: engines' metrics pages, gateways' windows, Prometheus.

Decides what a reading means and when it is too old.
Never judges a revision.
"""
