"""One module for each engine that a revision may run on: image, command line, probes, metric names.

Decides how a replica of that engine is started and read.
Never builds a whole pod (`manifests` does).
"""
