"""The rules of `.spec` that cross fields.

Decides which combinations are refused, and with which message: each in CEL, which the CRD ships and the operator evaluates.
Never repeats what the structural schema states. What CEL cannot state is in `spec.beyond_cel`.
"""
