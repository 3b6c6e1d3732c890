"""The structure of `.spec`: types, bounds, defaults and descriptions; one source for the CRD and the operator.

Decides which fields there are.
Never says what crosses fields (`rules` does).
"""
