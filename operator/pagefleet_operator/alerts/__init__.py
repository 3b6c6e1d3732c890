"""Alertmanager's webhook: checks the token, reads the payload, stores alerts in the status before it answers.

Decides which service an alert concerns.
Never rolls back by itself (`domain.rollout` does).
"""
