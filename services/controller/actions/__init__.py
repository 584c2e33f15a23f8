"""Actions on tasks, nodes, groups, access and the configuration: authorised, and written as conditional appends, with ActionTaken in the
same message. REST and pages call the same functions."""

from services.controller.actions.access import AccessLog, KeyActions, KeyValues, TenantActions, UserActions, UserValues
from services.controller.actions.nodes import ConfigActions, GroupActions, GroupValues, NodeActions
from services.controller.actions.tasks import TaskActions

__all__ = [
    "AccessLog", "ConfigActions", "GroupActions", "GroupValues", "KeyActions", "KeyValues", "NodeActions", "TaskActions", "TenantActions",
    "UserActions", "UserValues",
]  # fmt: skip
