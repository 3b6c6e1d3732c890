"""The base of every command: the cluster, options, output, and errors in words.

Decides how a number, a time or a failure is shown.
Never writes anything but the annotation of an action.
"""
