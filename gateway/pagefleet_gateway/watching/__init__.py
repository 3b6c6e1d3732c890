"""The watches on InferenceServices, pods and InferencePools, which keep the gateway's state that of the cluster.

Decides when a list or a watch begins again.
Never writes to the API server.
"""
