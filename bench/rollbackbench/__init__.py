"""The parts of bench/rollback.py: the shipped operator and gateway on a real API server, with stub engines as pods.

Decides what a rollback is measured by: the canary's last request, the end of its streams, and failed requests.
Never starts a model.
"""
