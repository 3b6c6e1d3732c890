"""The watch of the stable revision: the record of its predecessor, and the comparison with it at like load.

It decides whether a revision that serves all traffic has become slower than the one before it. It never reads a clock,
does I/O, or moves traffic.
"""
