"""Operations of the engine: Triton kernels beside their torch references, and compiled CPU operations.

Decides how an operation is computed.
Never imports the engine.
"""
