"""A fleet of engines, its gateway and its autoscaler in virtual time: it shows the cost of a scaling policy.

It decides nothing of its own: the autoscaler is the operator's own function (`pagefleet_operator.domain.scaling.autoscale`).
The other scalers are the rules of other projects, for comparison. It touches no cluster, no network and no clock.
"""
