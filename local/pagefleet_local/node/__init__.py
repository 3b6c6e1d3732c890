"""containerd, kubelet, kube-proxy, DNS and the network: the one node.

Decides their configuration.
Never imitates a kubelet.
"""
