"""Requests that no pod can take now: they wait here, and go on in fair order.

Decides who waits, who goes first and who is refused.
Never chooses a pod.
"""
