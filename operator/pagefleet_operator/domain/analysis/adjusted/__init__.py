"""The test on load-adjusted times, to first token or of whole answers: whether the canary computes more slowly than the stable would under the
same load.

Holds the thresholds that the stable revision sets, the evidence against the canary, and the calibration by single stable pods.
Never moves traffic, and never sees a time that the gateway has not adjusted.
"""
