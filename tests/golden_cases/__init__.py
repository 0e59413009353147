"""Cases of the golden vectors, turned into our own types: one module per room that they check."""
