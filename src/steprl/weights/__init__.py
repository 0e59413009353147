"""From the learner to the engines: what new weights look like on the way.

A source hands out named tensors; how an engine takes them in is the engine's own affair.
"""
