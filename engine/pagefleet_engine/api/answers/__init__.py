"""Answers on their way out: tokens become text, tool calls, log probabilities and OpenAI's documents, whole or streamed.

Decides what a client reads and in which chunks.
Never chooses a token and never reads a request body.
"""
