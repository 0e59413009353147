"""Why a step got the credit it got: every estimator on the same stored episodes, side by side.

Pure numpy: nothing here asks a model, so it runs where there is no torch.
"""
