"""The scalers that a simulation can run: the operator's, and the rules of other projects to be compared with."""
