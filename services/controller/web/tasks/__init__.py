"""The Tasks page: an index of tasks, its questions, the story of one task, what is done to it."""
