"""A cluster made by kind (Kubernetes in Docker), for machines with Docker; the scenes on it are the demo's."""
