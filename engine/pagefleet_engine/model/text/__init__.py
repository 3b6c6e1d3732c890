"""Text: tokenizers, chat templates and grammars.

Decides which token ids a text has and which tokens a grammar allows.
Never imports torch.
"""
