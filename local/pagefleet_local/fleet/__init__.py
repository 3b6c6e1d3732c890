"""Installs Pagefleet on the local node the way a user does: kubectl apply of the CRD, the manifests and a sample."""
