"""The replicas of every revision: what the load needs, made steady; warm spares; which pods go first.

Decides replica counts.
Never splits traffic.
"""
