"""The Kubernetes API as the operator uses it: watches and lists into a store, server-side apply, leader election.

Decides how a plan is written and what was read.
Never decides what should be.
"""
