"""What a streamed token costs in the engine's API process: a stub in the engine process's place, and streams of several kinds.

`stub` speaks the engine process's protocol and computes nothing. `streams` counts the processor time of the API process.
"""
