"""Keeps files, batches and the answers of their lines in one folder, so that a process that is killed loses none of them.

Decides nothing about a batch.
Never talks to the gateway, and never holds a whole file in memory.
"""
