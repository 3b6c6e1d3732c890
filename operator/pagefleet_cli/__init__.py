"""`pagefleet` and `kubectl pagefleet`: shows services and rollouts, asks for actions, measures, plans, simulates.

Decides nothing.
Never writes anything but the annotation of an action.
"""
