"""`pagefleet bench`: open-loop load on an OpenAI-compatible server, and its comparison with earlier runs.

Decides when each request is sent.
Never waits for one answer before it sends the next request.
"""
