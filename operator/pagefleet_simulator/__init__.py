"""A fleet of engines, its gateway and its autoscaler in virtual time: what a scaling policy would have cost.

Decides nothing of its own: the autoscaler is the operator's own function (`pagefleet_operator.domain.scaling.autoscale`), the
others are the rules of other projects, to be compared with. Touches no cluster, no network and no clock.
"""
