"""Stands before the engine of a decode pod: has a prefill pod compute a request's prompt first, where the gateway names one. Or before
that of a warm spare: lets nobody reach the routes that are for the engine's developers.

It holds the two legs of a request and what it counts of them, and the list of a spare's open routes. It decides which prompts a decode pod
computes alone, and what may reach a spare's engine. It never chooses a prefill pod, and it never answers in the engine's place but to refuse.
The protocol of the legs is the engine's: vLLM's `kv_transfer_params` (`in_turn`) or SGLang's bootstrap rooms (`at_once`). Source: vLLM's
documentation of the NixlConnector, SGLang's own router; llm-d's routing sidecar has the same place in a pod.
"""
