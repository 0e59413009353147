"""Inference engines: tokens in, completion out. Each engine is one module behind the same four verbs."""
