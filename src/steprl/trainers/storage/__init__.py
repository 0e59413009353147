"""A run on disk: its folder, what makes files whole and lasting, TensorBoard events and curves."""
