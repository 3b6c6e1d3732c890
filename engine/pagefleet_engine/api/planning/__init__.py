"""Turns a checked request body into the engine's requests: token ids, limits of this server, the grammar.

Decides whether a request can be served here.
Never waits for an answer.
"""
