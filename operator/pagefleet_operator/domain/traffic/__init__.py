"""What follows from `.spec.traffic`: the routes of provider GatewayAPI, and the fallback service.

Decides which route objects exist, and their content.
Never chooses weights (`rollout` does).
"""
