"""The rollout: which revision is stable, which is the canary, how traffic is split, and the way back.

Decides steps, promotion, rollback and what a person's action does.
Never counts requests (`analysis` does) and never sizes a revision (`scaling` does).
"""
