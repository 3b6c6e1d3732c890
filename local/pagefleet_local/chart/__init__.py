"""The Helm chart, written from the kustomize base and components. Never a second place where an object is described."""
