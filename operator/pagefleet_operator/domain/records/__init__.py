"""The records of revisions: what only `.status` knows, stored where a back-up finds it (ControllerRevisions).

Decides what is recorded, and what a service without a status, or with a new uid, takes over from its records.
Never decides a rollout (`rollout` does).
"""
