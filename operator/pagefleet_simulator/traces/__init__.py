"""The arrivals at the simulated fleet: built-in traces, published ones, and traces as a flow.

It decides when which request arrives.
It never serves a request.
"""
