"""Recipes against each other: variants of one recipe trained with the same seeds, and one report on them.

Nothing here knows what is compared: an algorithm, a context rule or a step size is a variant all the same.
"""
