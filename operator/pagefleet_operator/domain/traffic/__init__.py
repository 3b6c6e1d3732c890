"""What follows from `.spec.traffic`: the routes of provider GatewayAPI, and the fallback service.

Decides which route objects exist and what they say.
Never chooses weights (`rollout` does).
"""
