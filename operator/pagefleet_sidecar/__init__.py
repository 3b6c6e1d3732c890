"""Stands before the engine of a decode pod: has a prefill pod compute a request's prompt first, where the gateway names one.

It holds the two legs of a request and what it counts of them. It decides which prompts a decode pod computes alone. It never
chooses a prefill pod, and it never answers in the engine's place but where it cannot read a request. The protocol is vLLM's
`kv_transfer_params`. Source: vLLM's documentation of the NixlConnector; llm-d's routing sidecar has the same place in a pod.
"""
