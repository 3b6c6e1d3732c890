"""The command line of the programs that measure in parts.

Decides how parts are chosen, how figures are shown and stored, and which targets are missed.
Never measures anything but how busy the machine is.
"""
