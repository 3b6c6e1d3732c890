"""The API process's reports about itself: Prometheus metrics and traces.

Decides names, labels and buckets.
Never changes a request.
"""
