"""One module for each group of HTTP endpoints: completions, embeddings, tokens, health, administration, OpenAPI.

Decides which module answers a path.
Never holds state between requests.
"""
