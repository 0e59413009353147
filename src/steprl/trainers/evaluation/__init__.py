"""Evaluation with several attempts per task: played, kept, estimated, reported, and compared in pairs."""
