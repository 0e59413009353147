"""Before a run: a short calibration, and what it says about tokens, memory and time."""
