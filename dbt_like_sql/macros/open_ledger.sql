{#- Make the ledger's tables and views known, and the marts of earlier runs.

    A process of its own begins with an empty catalog.  An incremental model whose table is not known there is built anew,
    without a word; and dbt has looked at the catalog before it comes here, so it is told too. -#}
{% macro open_ledger() %}
    {%- if execute -%}
        {%- do run_query("create schema if not exists ledger location '" ~ warehouse() ~ "'") -%}
        {%- for name in ledger_tables() -%}
            {%- do register('ledger.' ~ name, warehouse() ~ '/' ~ name) -%}
        {%- endfor -%}
        {%- for name, query in ledger_views().items() -%}
            {%- do run_query('create or replace view ledger.' ~ name ~ ' as ' ~ query) -%}
        {%- endfor -%}
        {%- do open_marts() -%}
        {%- do keep_ledger('cache lazy table') -%}
    {%- endif -%}
{% endmacro %}


{#- What is read of the ledger's tables is kept until the run ends: each model and test asks some of them, and a look at a
    Delta table is a job of its own.  Not on a server, whose other users want to see what has come since. -#}
{% macro keep_ledger(command) %}
    {%- if execute and target.name == 'session' -%}
        {%- for name in ledger_tables() -%}
            {%- do run_query(command ~ ' ledger.' ~ name) -%}
        {%- endfor -%}
    {%- endif -%}
{% endmacro %}


{% macro ledger_tables() %}
    {{- return(['events', 'decisions', 'assignments', 'offsets']) -}}
{% endmacro %}


{% macro open_marts() %}
    {#- A mart has a log of Delta's; the ledger's own is named too, for a pattern that finds nothing is an error. -#}
    {%- set logs -%}
        select distinct element_at(split(_metadata.file_path, '/'), -3) as name
        from binaryFile.`{{ warehouse() }}/{decisions,marts/*}/_delta_log/*.json`
    {%- endset -%}
    {%- set there = run_query(logs).columns[0].values() -%}
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
    {#- In a session the catalog is this process's, and may name the tables of another warehouse. -#}
    {%- if target.name == 'session' -%}
        {%- do run_query('drop table if exists ' ~ name) -%}
    {%- endif -%}
    {%- do run_query('create table if not exists ' ~ name ~ " using delta location '" ~ path ~ "'") -%}
{% endmacro %}


{#- The folder of the tables. -#}
{% macro warehouse() %}
    {{- return(var('warehouse', env_var('WAKEROLL_WAREHOUSE', '../.wakeroll/warehouse'))) -}}
{% endmacro %}


{#- A schema in a folder of the warehouse, not in one of the engine's own choice. -#}
{% macro spark__create_schema(relation) %}
    {%- call statement('create_schema') -%}
        create schema if not exists {{ relation.without_identifier() }} location '{{ warehouse() }}/{{ relation.schema }}'
    {%- endcall -%}
{% endmacro %}
