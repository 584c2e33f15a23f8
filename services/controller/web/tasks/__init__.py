"""The pages of tasks: the table, the page of one task, what it did on its devices."""
