"""One scene per file, in the order of `main.SCENES`; each raises `SceneFailed` when what it shows does not hold."""
