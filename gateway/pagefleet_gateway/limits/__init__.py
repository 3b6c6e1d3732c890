"""API keys, and limits on requests and tokens a minute.

Decides 401, 403 and 429. Holds the keys in force and a token bucket per client, and shares the buckets with the other
gateway pods. Settles each charge with the tokens that the answer had.
Never chooses a pod.
"""
