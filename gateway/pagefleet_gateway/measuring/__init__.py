"""The measurements of this gateway pod: latency windows by service, revision and stratum, and its metrics.

Decides what an access-log line counts as. Holds an hour of slices.
Never influences a request.
"""
