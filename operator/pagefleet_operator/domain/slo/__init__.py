"""The error budgets of `spec.slo`: how much of each is left, how fast it is used, and when it is gone.

Adds up what the gateways count (`attainment`), keeps it by day in `.status.slo` (`budget`), and states it for people (`report`).
Never decides about a rollout or a replica.
"""
