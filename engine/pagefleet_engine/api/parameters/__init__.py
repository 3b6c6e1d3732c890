"""Request bodies, checked field by field.

Decides which requests are valid; an error names the parameter.
Never looks at the model or at the load.
"""

from pagefleet_engine.api.parameters.generation import NO_DEFAULTS, Parameters, parse, sampling_defaults

__all__ = ["NO_DEFAULTS", "Parameters", "parse", "sampling_defaults"]
