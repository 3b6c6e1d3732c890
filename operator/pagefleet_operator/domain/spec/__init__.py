"""`.spec`: read into typed values, or refused with the name of each wrong field.

Decides what a spec may say; `schema` holds its structure, `rules` what crosses fields.
Never looks at a cluster.
"""
