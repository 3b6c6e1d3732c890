"""The parts of bench/engine_cpu.py."""
