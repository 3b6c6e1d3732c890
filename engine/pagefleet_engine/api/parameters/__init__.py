"""Request bodies, checked field by field.

Decides what a request may say; what is wrong is refused by the name of the parameter.
Never looks at the model or at the load.
"""

from pagefleet_engine.api.parameters.generation import Parameters, parse

__all__ = ["Parameters", "parse"]
