"""Kubernetes API servers for tests: a fake one that is there at once, and the real one (``make test-kube``)."""
