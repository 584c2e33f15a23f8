"""Code that the client and the services share: connections to the bus, its credentials, TLS, tracing, names of environment variables, and
small tools. The services import nothing else of ``wooly``.

May live here: what both sides need in the same form. May not: imports of the rest of ``wooly``. Errors of
configuration are ValueErrors with a sentence for the operator, which each side raises as an error of its own.
"""
