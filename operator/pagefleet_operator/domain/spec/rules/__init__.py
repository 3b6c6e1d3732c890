"""The rules of `.spec` that cross fields.

Decides which combinations are refused, and with which message.
Never repeats what the structural schema already says.
"""
