"""The kopf operator: observe, decide, apply, for each InferenceService.

Decides rollouts, rollbacks and replicas (in `domain`).
Never touches a request and never writes `.spec`.
"""
