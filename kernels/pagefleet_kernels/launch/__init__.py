"""How kernels are launched: Triton where it is installed, and tables that say how a launch is cut up by shape.

Decides block sizes and splits from shapes alone.
Never measures while serving (`tune` writes tables beforehand).
"""
