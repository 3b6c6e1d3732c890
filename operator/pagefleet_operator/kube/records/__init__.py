"""The ControllerRevisions in which revisions are recorded: read, written, and deleted some time after their service.

Decides when the record of a deleted service is old enough to go.
Never decides what a record says (`domain.records` does).
"""
