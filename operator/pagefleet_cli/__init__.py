"""`pagefleet` and `kubectl pagefleet`: shows services and rollouts, requests actions, measures, plans, simulates.

Decides nothing.
Never writes anything but the annotation of an action.
"""
