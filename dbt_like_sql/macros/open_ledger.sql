{#- Register the tables and views of the ledger, and the marts of earlier runs.

    A new process begins with an empty catalog, and dbt silently rebuilds an incremental model whose table is not in the
    catalog.  dbt reads the catalog before this macro runs, so the macro updates dbt's cache too. -#}
{% macro open_ledger() %}
    {#- In the target `duckdb`, `wakeroll_pipeline.questions.dbt_plugin` has opened the ledger already. -#}
    {%- if execute and target.type == 'spark' -%}
        {%- do run_query("create schema if not exists ledger location '" ~ warehouse() ~ "'") -%}
        {%- set versions = var('versions', {}) -%}
        {%- set there = delta_tables() -%}
        {%- for name, no_rows in empty_tables().items() -%}
            {%- set path = warehouse() ~ '/' ~ name -%}
            {%- if name in versions or (name in there and name not in cached_tables()) -%}
                {#- `wakeroll marts` names the versions of one moment: a batch is in all tables, or in none. -#}
                {%- set version = ' version as of ' ~ versions[name] if name in versions else '' -%}
                {%- do run_query(
                    'create or replace view ledger.' ~ name ~ ' as select * from delta.`' ~ path ~ '`' ~ version
                ) -%}
            {%- elif name in cached_tables() -%}
                {%- do register('ledger.' ~ name, path) -%}
            {%- else -%}
                {%- do run_query('create or replace view ledger.' ~ name ~ ' as ' ~ no_rows) -%}
            {%- endif -%}
        {%- endfor -%}
        {%- for name, definition in ledger_views().items() -%}
            {%- do run_query('create or replace view ledger.' ~ name ~ ' ' ~ definition) -%}
        {%- endfor -%}
        {%- do open_marts(there) -%}
        {%- do keep_ledger('cache lazy table') -%}
    {%- endif -%}
{% endmacro %}


{#- Cache the tables that the models read until the run ends: many models and tests read them, and each read of a Delta
    table is a Spark job.  A server caches nothing, because its other users need new rows. -#}
{% macro keep_ledger(command) %}
    {%- if execute and target.name == 'session' -%}
        {%- for name in cached_tables() -%}
            {%- do run_query(command ~ ' ledger.' ~ name) -%}
        {%- endfor -%}
    {%- endif -%}
{% endmacro %}


{% macro cached_tables() %}
    {{- return(['events', 'decisions', 'assignments', 'offsets']) -}}
{% endmacro %}


{#- Names of the tables and marts that exist: each has a Delta log.  The log of `decisions` is always there; a pattern
    without a match is an error. -#}
{% macro delta_tables() %}
    {%- set logs -%}
        select distinct element_at(split(_metadata.file_path, '/'), -3) as name
        from binaryFile.`{{ warehouse() }}/{decisions,snapshots,divergences,chain,daily_facts,marts/*}/_delta_log/*.json`
    {%- endset -%}
    {{- return(run_query(logs).columns[0].values()) -}}
{% endmacro %}


{% macro open_marts(there) %}
    {%- for node in graph.nodes.values() if node.resource_type == 'model' and node.config.file_format == 'delta' -%}
        {%- set mart = api.Relation.create(schema=node.schema, identifier=node.alias, type='table', is_delta=true) -%}
        {%- if node.alias in there -%}
            {%- do register(mart, warehouse() ~ '/marts/' ~ node.alias) -%}
            {%- do adapter.cache_added(mart) -%}
        {%- else -%}
            {%- do run_query('drop table if exists ' ~ mart) -%}
            {%- do adapter.cache_dropped(mart) -%}
        {%- endif -%}
    {%- endfor -%}
{% endmacro %}


{% macro register(name, path) %}
    {#- The catalog of a session belongs to this process, and may name the tables of another warehouse. -#}
    {%- if target.name == 'session' -%}
        {%- do run_query('drop table if exists ' ~ name) -%}
    {%- endif -%}
    {%- do run_query('create table if not exists ' ~ name ~ " using delta location '" ~ path ~ "'") -%}
{% endmacro %}


{#- Folder of the tables. -#}
{% macro warehouse() %}
    {{- return(var('warehouse', env_var('WAKEROLL_WAREHOUSE', '../.wakeroll/warehouse'))) -}}
{% endmacro %}


{#- Create a schema in a folder of the warehouse instead of the engine's default folder. -#}
{% macro spark__create_schema(relation) %}
    {%- call statement('create_schema') -%}
        create schema if not exists {{ relation.without_identifier() }} location '{{ warehouse() }}/{{ relation.schema }}'
    {%- endcall -%}
{% endmacro %}
