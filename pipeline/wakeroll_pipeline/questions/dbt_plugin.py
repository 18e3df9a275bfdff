"""dbt-duckdb's plugin for the target `duckdb`: it opens the ledger in DuckDB, and stores each mart as a Delta table.

`dbt_like_sql/profiles.yml` names this module; plain dbt finds it if wakeroll is installed beside it.
"""

from typing import Any

from dbt.adapters.duckdb.plugins import BasePlugin
from dbt.adapters.duckdb.utils import TargetConfig
from duckdb import DuckDBPyConnection
from msgspec import convert

from wakeroll_pipeline.ledger.daily_facts import query_of_facts
from wakeroll_pipeline.ledger.duck_ledger import LazyViews, open_tables
from wakeroll_pipeline.ledger.stored_marts import DAILY_FACTS, mart_paths, mart_query, merge_mart, replace_mart
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.s3_access import S3Access

_LEDGER = "ledger"
"""Schema of the ledger's tables and views, which the models read as a dbt source."""
_MARTS = "marts"
"""Schema of the models, and of the marts of earlier runs."""
_STORED = "stored"
"""Schema of the stored marts of the warehouse."""


class Plugin(BasePlugin):
    """The plugin: one warehouse, one connection."""

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Read the configuration: `warehouse`, the folder of the tables, and `s3_endpoint` and the like.

        Raises:
            InvalidUsage: the URI in `warehouse` cannot be used.
        """
        access = {name: plugin_config.get(f"s3_{name}") or "" for name in S3Access.__struct_fields__}
        s3 = convert({name: value for name, value in access.items() if value}, S3Access)
        self._warehouse = Place.of(plugin_config["warehouse"], s3)

    def configure_connection(self, conn: DuckDBPyConnection) -> None:
        """Open the tables and views of the ledger, and the marts of earlier runs.

        The marts are tables, because dbt rebuilds an incremental model that is not a table.

        Raises:
            InvalidUsage: the warehouse has no tables.
            UnreadableTable: a table or mart cannot be read; each model needs all of them, directly or by its tests.
        """
        self._connection = conn
        for schema in (_LEDGER, _MARTS, _STORED):
            conn.execute(f"create schema {schema}")
        conn.execute(f"use {_LEDGER}")
        if (unreadable := open_tables(conn, self._warehouse, at_one_moment=True).unreadable) != {}:
            raise next(iter(unreadable.values()))
        LazyViews().create(conn)
        conn.execute(f"create view {DAILY_FACTS} as {query_of_facts(self._warehouse)}")
        conn.execute("use main")
        for name, path in mart_paths(self._warehouse).items():
            conn.execute(f'create view {_STORED}."{name}" as {mart_query(path)}')
            conn.execute(f'create table {_MARTS}."{name}" as select * from {_STORED}."{name}"')

    def store(self, target_config: TargetConfig) -> None:
        """Store a mart that dbt has built.

        Args:
            target_config: the relation; `location` has the folder of the mart; the format is `merge` if new and changed
                rows are added to the stored ones, otherwise `replace`.
        """
        name, location = target_config.relation.identifier, target_config.location
        assert location is not None, "the macro `store_mart` names the folder"
        path = Place.of(location.path, self._warehouse.s3)
        cursor = self._connection.cursor()
        built = f'{_MARTS}."{name}"'
        if location.format == "merge" and name in mart_paths(self._warehouse):
            changed = cursor.sql(f'from {built} except from {_STORED}."{name}"')
            if changed.limit(1).fetchall():
                merge_mart(path, changed, target_config.config["unique_key"])
        else:
            config = target_config.config
            replace_mart(path, cursor.sql(f"from {built}"), str(config["description"]), config["comments"])
