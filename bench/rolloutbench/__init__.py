"""The parts of bench/rollout_guard.py: simulated traffic of two revisions, and the judges that decide on it.

Decides how latencies are distributed, and how each judge's rule reads them.
Never uses a clock: the time is virtual.
"""
