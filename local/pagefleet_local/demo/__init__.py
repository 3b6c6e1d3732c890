"""The demo: a real fleet on this machine doing its main job, narrated, each step checked.

Decides what is shown and what must hold.
Never makes or removes a cluster (`lifecycle` does).
"""
