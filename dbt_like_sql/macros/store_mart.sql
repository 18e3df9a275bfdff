{#- Store a mart that DuckDB has built as a Delta table of the warehouse; Spark has built it there. -#}
{% macro store_mart() %}
    {%- if execute and target.type == 'duckdb' -%}
        {%- set adds = config.get('materialized') == 'incremental' and not should_full_refresh() -%}
        {%- set told = {'unique_key': config.get('unique_key'), 'description': model.description} -%}
        {%- do adapter.store_relation(
            'delta', this, [], warehouse() ~ '/marts/' ~ this.identifier, 'merge' if adds else 'replace', told
        ) -%}
    {%- endif -%}
{% endmacro %}
