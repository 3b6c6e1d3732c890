"""The budget of `spec.cost`: what a service has cost this month, what it will have cost by its end, and what it gives up.

Adds up the cost of replicas (`spending`), keeps it in `.status.spending`, bounds the replicas and names the classes of requests that are
given up, and states it for people (`report`). Never decides how many replicas the load needs.
"""
