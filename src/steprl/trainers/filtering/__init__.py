"""Which episodes of a rollout train: filters as values of a recipe, and what becomes of their groups."""
