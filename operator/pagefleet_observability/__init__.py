"""Rules, alerts and dashboards for Prometheus and Grafana, written from one source.

Decides what is recorded, what alerts and what is drawn.
Never reads a cluster and never imports another piece.
"""
