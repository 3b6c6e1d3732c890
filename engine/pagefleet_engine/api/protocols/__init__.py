"""Other clients' protocols, OpenAI's Responses and Anthropic's Messages, as translations of chat completions.

Decides which fields of theirs mean which of ours, and writes their documents and events; holds stored responses.
Never generates, never tokenises, never reads a socket.
"""
