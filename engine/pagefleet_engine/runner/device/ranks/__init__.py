"""The processes that compute one model together, on one machine or on several, and the messages between them.

Decides how ranks start, follow rank 0 and end.
Never schedules a step.
"""
