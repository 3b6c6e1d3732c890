"""Every decision of the operator as pure functions: an observation and a time in, a plan out.

Decides everything; `decide.py` is the way in.
Never does I/O and never reads a clock.
"""
