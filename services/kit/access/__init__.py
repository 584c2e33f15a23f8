"""Authentication and authorisation of every service with a REST API: identities, roles, keys, and the rules between them.

May live here: the table of actions (``rules``), the projection of tenants, users and keys (``view``), checking of secrets, tokens, the
middleware. May not: routes, pages, anything of one service.
"""

from services.kit.access.rules import ACTIONS, ROLES, SCOPES, Action, Identity, allowed, local_identity
from services.kit.access.view import AccessView

__all__ = ["ACTIONS", "ROLES", "SCOPES", "AccessView", "Action", "Identity", "allowed", "local_identity"]
