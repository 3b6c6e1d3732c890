"""What the API process reports of itself: Prometheus metrics and traces.

Decides names, labels and buckets.
Never changes a request.
"""
