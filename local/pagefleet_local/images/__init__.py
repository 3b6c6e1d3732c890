"""The production images, built without Docker or a registry and imported into the local fleet's containerd."""
