"""Constrained output: response formats and grammars, and the tools that models call.

Decides which grammar bounds an answer and what a generated tool call says.
Never samples.
"""
