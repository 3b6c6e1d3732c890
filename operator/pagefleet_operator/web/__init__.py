"""The operator's HTTP server: health, its own metrics, the alert webhook's route, the read-only status page.

Decides what is shown and to whom.
Never changes an object.
"""
