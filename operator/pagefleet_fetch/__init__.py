"""Fetches models into a folder before an engine starts: the first container of a pod whose model comes from a hub or a store.

It holds the sources, the transfer of one file (resumed after any break, compared with its checksum), the cache on a volume and the page
that tells how far it is. It decides which cached models give way to a new one. It never runs what it fetches, and it never calls the API server.
"""
