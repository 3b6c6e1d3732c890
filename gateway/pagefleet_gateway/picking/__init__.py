"""The choice for one request: its service, its revision by weight, its pod by cost, and what is in flight.

Decides where a request goes, or why it is refused.
Never does I/O; the time is an argument.
"""
