"""Sends lines to the gateway: how many at the same time, whose comes next, and which answers mean "again".

Decides when a line is sent.
Never writes a file, and never changes the state of a batch.
"""
