"""One installation: its settings, and what is opened once for all who work on it.

The rooms from Kafka upwards take an :class:`Installation` instead of opening tables by themselves.
:class:`hindcast.Hindcast` is an installation with all that can be done with it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from hindcast import catalog
from hindcast.catalog import Catalog
from hindcast.settings import Settings

if TYPE_CHECKING:
    from hindcast.leases.delta_store import LeaseTable
    from hindcast.tables.control_tables import ControlTables
    from hindcast.tables.event_log import EventLog
    from hindcast.tables.ledger import Ledger


class Installation:
    """Settings, declared pipelines, control tables and leases. Each is opened at its first use.

    Pipelines are loaded once; make a new object to load them again. A table is read in its newest version
    each time. Safe for threads.

    delta-rs is imported by the attribute that needs it: a DAG file and ``hindcast --help`` do without.

    :param settings: those of this process by default: ``HINDCAST_*`` variables, then
        ``HINDCAST_HOME/settings.json``
    :raises SettingsRefusedError: if a setting of this process is wrong
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    @cached_property
    def catalog(self) -> Catalog:
        """The declared pipelines, and the files that were refused."""
        return catalog.load(self.settings.pipelines_dir)

    @cached_property
    def tables(self) -> ControlTables:
        """The control tables."""
        from hindcast.tables.control_tables import ControlTables

        return ControlTables(self.settings)

    @cached_property
    def lease_table(self) -> LeaseTable:
        """The table of leases and desired states."""
        from hindcast.leases.delta_store import LeaseTable

        return LeaseTable(self.settings)

    @cached_property
    def ledger(self) -> Ledger:
        """The committed batches of all streams."""
        from hindcast.tables.ledger import Ledger

        return Ledger(self.tables)

    @cached_property
    def event_log(self) -> EventLog:
        """Records what happened, for people."""
        from hindcast.tables.event_log import EventLog

        return EventLog(self.tables)
