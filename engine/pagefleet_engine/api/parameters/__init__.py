"""Request bodies: checked, or refused by the name of the parameter that is wrong."""

from pagefleet_engine.api.parameters.generation import Parameters, parse

__all__ = ["Parameters", "parse"]
