"""Where rooms meet: a recipe becomes parts, and one loop turns them into a trained policy."""
