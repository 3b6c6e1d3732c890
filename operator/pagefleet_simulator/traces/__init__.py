"""What arrives at the simulated fleet: built-in traces, published ones, and traces as a flow.

Decides when which request arrives.
Never serves one.
"""
