"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of this machine.

Decides their flags.
Never replaces one of them.
"""
