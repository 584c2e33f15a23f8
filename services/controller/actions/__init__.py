"""What people do to tasks, nodes, groups and the configuration: checked against who they are, written on the condition of what they saw,
with ActionTaken in the same message. REST and pages call the same functions.

May live here: checks, conditional writes. May not: HTTP, presentation, decisions of placement.
"""

from services.controller.actions.config import ConfigActions
from services.controller.actions.groups import GroupActions, GroupValues
from services.controller.actions.nodes import NodeActions
from services.controller.actions.tasks import TaskActions

__all__ = ["ConfigActions", "GroupActions", "GroupValues", "NodeActions", "TaskActions"]
