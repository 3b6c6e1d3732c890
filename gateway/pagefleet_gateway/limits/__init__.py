"""API keys, and limits on requests and tokens a minute.

Decides 401, 403 and 429. Holds the keys in force and a token bucket per client.
Never chooses a pod.
"""
