"""What the gateway pods tell each other over their internal ports, without a store between them.

Decides which gateway pods are told and heard. Holds the other pods' addresses. `loads` tells which requests each pod has in
flight where, and `quotas` divides quotas.
Never chooses a pod, and never decides a request.
"""
