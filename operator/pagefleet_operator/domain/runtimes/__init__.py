"""One module per engine that a revision may run on: how its replicas are started, and what they tell. Pure."""
