"""Actions on tasks, nodes, groups and the configuration: authorised, and written as conditional appends, with ActionTaken in the same
message. REST and pages call the same functions.

May live here: checks, conditional writes. May not: HTTP, presentation, decisions of placement.
"""

from services.controller.actions.access_log import AccessLog
from services.controller.actions.config import ConfigActions
from services.controller.actions.groups import GroupActions, GroupValues
from services.controller.actions.keys import KeyActions, KeyValues
from services.controller.actions.nodes import NodeActions
from services.controller.actions.tasks import TaskActions
from services.controller.actions.tenants import TenantActions
from services.controller.actions.users import UserActions, UserValues

__all__ = [
    "AccessLog", "ConfigActions", "GroupActions", "GroupValues", "KeyActions", "KeyValues", "NodeActions", "TaskActions", "TenantActions",
    "UserActions", "UserValues",
]  # fmt: skip
