"""Launches of kernels: Triton where it is installed, and tables that cut a launch up by its shape.

Decides block sizes and splits from shapes alone.
Never measures while serving (`tune` writes tables beforehand).
"""
