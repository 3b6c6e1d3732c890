"""The verdict on a canary: Regressed, Passed or Inconclusive, from measurements of requests.

Decides whether a revision is worse than the stable, at a stated confidence.
Never moves traffic (`rollout` does).
"""
