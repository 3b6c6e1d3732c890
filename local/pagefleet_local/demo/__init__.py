"""The demo: a real fleet on this machine doing its main job, narrated, each step checked."""
