"""The choice for one request: its service, its revision by weight, its pod by cost.

Decides where a request goes, or why it is refused. Holds the requests in flight.
Never does I/O; the time is an argument.
"""
