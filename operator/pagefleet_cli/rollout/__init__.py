"""`pagefleet rollout`: shows a rollout, explains it, and asks the operator for an action.

Decides nothing.
Never writes a spec or a status.
"""
