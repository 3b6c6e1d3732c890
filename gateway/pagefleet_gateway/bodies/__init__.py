"""The JSON bodies of requests: the fields that the gateway reads, the text of prompts, and the few changes that it makes.

Decides nothing about a request.
Holds nothing but the last body that was read.
Never does I/O.
"""
