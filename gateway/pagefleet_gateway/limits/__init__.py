"""Who may ask how much: API keys, and requests and tokens a minute.

Decides 401, 403 and 429.
Never chooses a pod.
"""
