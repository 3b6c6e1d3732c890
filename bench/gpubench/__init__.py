"""The engine on a GPU, end to end: shapes, workloads, our side, transformers' side, the floor."""
