"""The login page: what it looks like. Who may come in is said elsewhere (services.kit.access, routes/access_session)."""
