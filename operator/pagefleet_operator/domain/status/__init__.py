"""The input and output of one decision: the observation, `.status`, the stage of the rollout, the plan.

Decides how `.status` is stored and read back.
Never decides what happens next.
"""
