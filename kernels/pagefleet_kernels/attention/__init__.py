"""Attention over paged KV caches, and the writes and copies of KV pages.

Each operation lies beside its torch reference.
Never knows a model or a request.
"""
