"""Request bodies, checked field by field.

Decides which requests are valid; an error names the parameter.
Never looks at the model or at the load.
"""

from pagefleet_engine.api.parameters.generation import Parameters, parse

__all__ = ["Parameters", "parse"]
