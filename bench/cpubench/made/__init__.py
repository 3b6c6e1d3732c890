"""What bench/peers.py makes for engine_cpu.py: llama.cpp's programs, quantised checkpoints, models with random weights.

Everything lands in a folder that the caller names, whole or not at all. Nothing here measures.
"""
