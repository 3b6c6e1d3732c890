"""What every other room of the domain stands on: names on Kubernetes objects, quantities, the shape of a pod, histograms.

Decides nothing.
Never imports another room of the domain.
"""
