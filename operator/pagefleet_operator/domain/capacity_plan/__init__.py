"""The capacity plan of `spec.capacityPlan` beside what is measured: which of its assumptions hold, and what the others mean in replicas.

Estimates the planned numbers from readings (`estimates`), keeps a finding on each in `.status.capacityPlan` (`record`), works out the
replicas and their price (`consequence`), and states it for people (`report`).
Never decides how many replicas run, and never about a rollout.
"""
