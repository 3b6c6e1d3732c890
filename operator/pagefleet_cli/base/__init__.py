"""What every command stands on: the cluster, options, output, and errors in words.

Decides how a number, a time or a failure reads.
Never writes anything but the annotation of an action.
"""
