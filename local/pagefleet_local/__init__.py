"""A real one-node Kubernetes on this machine, our images without Docker, and the demo.

Decides how processes are started and cleaned up.
Never imitates Kubernetes.
"""
