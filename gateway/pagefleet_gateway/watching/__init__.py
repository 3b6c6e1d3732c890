"""The watches on InferenceServices, pods, InferencePools and InferenceObjectives, which keep the gateway's state equal to the cluster's.

Decides when a list or a watch begins again. Holds one watch per kind.
Never writes to the API server.
"""
