"""What every other room of the domain stands on: the child's names, the shape of a pod, histograms with ends.

Decides nothing.
Never imports another room of the domain.
"""
