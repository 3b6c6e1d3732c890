"""The base of the local cluster: paths, progress lines, processes, certificates, checks of the machine.

Decides where files lie and how a process is started and ended.
Never knows Kubernetes.
"""
