"""The policy under training: token log-probabilities, losses, and optimiser steps over mini-batches.

It minimises ``Σ weights · loss`` and does not know which estimator made the advantages.
"""
