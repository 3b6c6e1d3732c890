"""The files of docs/reference, made from what the pieces themselves declare and import.

Decides how a field, a metric, a command or a room is listed.
Never is shipped: nothing imports it.
"""
