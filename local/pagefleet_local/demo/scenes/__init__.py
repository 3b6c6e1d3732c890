"""One scene per file, in the order of `commands.demo.SCENES`.

Decides whether what a scene shows holds; it raises `SceneFailed` when it does not.
Never depends on what another scene left behind.
"""
