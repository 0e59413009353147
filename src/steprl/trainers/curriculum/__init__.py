"""Which tasks come next, where not simply all of them once per epoch: by past success, or easy to hard."""
