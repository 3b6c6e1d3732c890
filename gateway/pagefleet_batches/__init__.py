"""Serves `/v1/files` and `/v1/batches` in OpenAI's shape, and sends the lines of batches to the gateway as background work.

Decides which line is sent when, and when a batch is over. `jobs` says what a batch is, `storage` keeps files and answers on disk,
`sending` talks to the gateway.
Never chooses an engine pod, never reads the cluster, and never stores a client's key.
"""
