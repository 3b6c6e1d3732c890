"""The prefill leg of a request: which prefill pod computes the prompt for a decode pod, and what both have cached afterwards.

Decides whether a prefill pod is asked, and which one.
Holds nothing of its own.
Never does I/O; the time is an argument.
"""
