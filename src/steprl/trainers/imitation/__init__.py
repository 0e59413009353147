"""A small policy for any environment: demonstrations, a tokenizer and a model of its own, a warm start."""
