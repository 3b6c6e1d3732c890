"""What a release needs beside images and chart to be found by others: krew's plugin and Artifact Hub's metadata of a repository.

It makes the archive of `kubectl pagefleet` that needs no Python, the manifest by which krew finds it, and `artifacthub-repo.yml`. It
decides which platforms have an archive, by the files that are there. It never uploads anything.
"""
