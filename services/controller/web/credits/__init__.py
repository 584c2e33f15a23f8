"""The Credits page, and the client of billing."""
