"""The gradient atlas: worlds so small that every episode is played, and with them the exact mean and variance
of what an estimator, an aggregation rule and a loss make of the policy gradient."""
