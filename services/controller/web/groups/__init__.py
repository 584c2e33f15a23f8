"""The Groups page: the nodes in each, the tasks that target it."""
