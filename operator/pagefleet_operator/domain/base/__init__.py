"""What every other room of the domain stands on: a revision's spec as values, the child's names, histograms with ends.

Decides nothing.
Never imports another room of the domain.
"""
