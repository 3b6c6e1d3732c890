"""The paged-attention engine: paged KV cache, continuous batching, speculation, LoRA, quantisation, OpenAI's API.

Decides batching, paging and sampling.
Never knows Kubernetes.
"""
