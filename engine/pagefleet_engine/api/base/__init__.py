"""The parts that every endpoint uses: errors in OpenAI's shape, log lines, API keys, slow connections, work in threads.

Decides which callers are let in.
Never knows an endpoint.
"""
