"""What the gateway pods tell each other over their internal ports, without a store between them.

Decides with which gateway pods this one talks. Holds the other pods' addresses. `loads` sends the others the requests that this pod has
in flight and receives theirs (`news`), and `quotas` divides quotas.
Never chooses a pod, and never decides a request.
"""
