"""The gateway's own Envoy filters, in C: they hold an answer until its first token, and time it there.

Decides what a first token is (source/events.c). Holds the filters' sources, their compilation and their configuration.
Never reads a request's body, and never changes an answer that has a token.
"""
