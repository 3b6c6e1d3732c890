"""The Helm chart, written from the kustomize base and components.

Decides where values enter the objects.
Never describes an object a second time.
"""
