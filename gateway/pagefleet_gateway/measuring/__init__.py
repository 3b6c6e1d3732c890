"""What this gateway pod measured: latency windows by service, revision and stratum, from Envoy's access log; its metrics.

Decides what an access-log line counts as.
Never influences a request.
"""
