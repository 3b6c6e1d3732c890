"""The two protocols by which a proxy asks the picker: ext_authz over HTTP, and ext_proc over gRPC.

Decides how requests are read and decisions are written. Holds one connection or stream each.
Never chooses a pod.
"""
