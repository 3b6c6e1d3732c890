"""The two protocols by which a proxy asks the picker: ext_authz over HTTP, and ext_proc over gRPC.

Decides how questions and answers are read and written.
Never chooses a pod.
"""
