"""The parts of bench/rollout_guard.py: fleets in virtual time, the shipped measuring and deciding code, and others' rules.

Decides how traffic, engines and regressions behave. A request is routed and measured by the gateway's own picker,
ledger and windows. The verdict is the operator's own `decide()` with the shipped limits.
Never uses a clock: the time is virtual, and every random number follows from the seed.
"""
