"""Generated text taken apart as it arrives: reasoning, content and calls of tools, in the syntax of each family of models.

Decides which part of a text is what; `registry` lists the syntaxes, one small module each.
Never depends on how the text is split, never chooses a token, never raises an error for what a model writes.
"""
