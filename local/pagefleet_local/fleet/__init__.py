"""Installs Pagefleet on a cluster the way a user does: kubectl apply of the CRD, the manifests and a sample.

Decides how programs on this machine reach a fleet.
Never talks to the API server except through kubectl.
"""
