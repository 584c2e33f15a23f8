"""Nodes: the list, and the page of one node with its devices, charts, configuration, tasks and sessions."""
