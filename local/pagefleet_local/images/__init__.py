"""The production images, built without Docker or a registry and imported into the local fleet's containerd.

Decides which image is stale and must be built again.
Never fetches an image.
"""
