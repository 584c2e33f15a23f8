"""Dependencies of routes, pages and actions: the parts of one running controller, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from litestar import Request

from scheduler.placement import ClusterView
from services.controller.actions import (
    AccessLog,
    ConfigActions,
    GroupActions,
    KeyActions,
    NodeActions,
    TaskActions,
    TenantActions,
    UserActions,
)
from services.controller.actions.second_factor import SecondFactor
from services.controller.bus_guard import BusGuard
from services.controller.configuration import Configuration
from services.controller.journals import Journals
from services.controller.log_projection import LogProjection
from services.controller.metrics import Gauges
from services.controller.oidc import OidcProvider
from services.controller.reconciler import Reconciler
from services.controller.runs import Runs
from services.controller.task_index import TaskIndex
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.access.access import Access

Ask = Request[Any, Any, Any]


@dataclass(slots=True, kw_only=True)
class Parts:
    """The actions (``tasks`` to ``keys``) are the same for REST and pages."""

    projection: LogProjection  #: it keeps an AccessView
    gauges: Gauges
    writer: Writer
    configuration: Configuration
    reconciler: Reconciler
    access: Access
    journals: Journals  #: what the nodes' journals say of a task
    runs: Runs  #: scripts that runners execute
    tasks: TaskActions
    guard: BusGuard | None = None  #: None: the bus needs no authentication
    audit_key: Ed25519PrivateKey | None = None  #: signs exports of audit records
    oidc: OidcProvider | None = None  #: None: no login through an identity provider
    index: TaskIndex = field(default_factory=TaskIndex)
    nodes: NodeActions = field(init=False)
    groups: GroupActions = field(init=False)
    config: ConfigActions = field(init=False)
    access_log: AccessLog = field(init=False)
    tenants: TenantActions = field(init=False)
    users: UserActions = field(init=False)
    second_factor: SecondFactor = field(init=False)
    keys: KeyActions = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = NodeActions(self.projection, self.configuration)
        self.groups = GroupActions(self.projection, self.writer)
        self.config = ConfigActions(self.projection, self.configuration)
        self.access_log = AccessLog(self.projection, self.writer, self.access)
        self.tenants = TenantActions(self.access_log)
        self.users = UserActions(self.access_log, self.access)
        self.second_factor = SecondFactor(self.access_log, self.writer, self.access, self.users)
        self.keys = KeyActions(self.access_log, self.access)

    def task_index(self) -> TaskIndex:
        """The index of the view's tasks, up to date with the view."""
        self.index.follow(self.projection.view)
        return self.index

    async def fresh_view(self) -> ClusterView:
        """The view, with everything that is in the log now."""
        await self.projection.caught_up()
        return self.projection.view

    async def fresh_access(self) -> AccessView:
        """The same of tenants, users and keys."""
        await self.projection.caught_up()
        return self.projection.fold(AccessView)


def parts_of(request: Ask) -> Parts:
    found: Parts = request.app.state.parts
    return found
