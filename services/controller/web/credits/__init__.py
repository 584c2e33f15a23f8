"""The Credits page, and the line to billing."""
