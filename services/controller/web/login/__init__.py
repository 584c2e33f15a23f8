"""The login page: what it looks like. Authentication is in services.kit.access and routes/access_session."""
