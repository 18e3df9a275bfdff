{#- Store a mart that DuckDB has built as a Delta table of the warehouse; Spark has built it there. -#}
{% macro store_mart() %}
    {%- if execute and target.type == 'duckdb' -%}
        {%- set adds = config.get('materialized') == 'incremental' and not should_full_refresh() -%}
        {%- set comments = {} -%}
        {%- for column in model.columns.values() -%}{%- do comments.update({column.name: column.description}) -%}{%- endfor -%}
        {%- set told = {'unique_key': config.get('unique_key'), 'description': model.description, 'comments': comments} -%}
        {%- do adapter.store_relation(
            'delta', this, [], wakeroll.warehouse() ~ '/marts/' ~ this.identifier, 'merge' if adds else 'replace', told
        ) -%}
    {%- endif -%}
{% endmacro %}


{#- Comments of the columns of a mart that Spark has built: in one commit, where dbt would make one per column.  A mart
    that an incremental run continues has them already. -#}
{% macro spark__alter_column_comment(relation, column_dict) %}
    {%- if config.get('file_format') == 'delta' and not is_incremental() -%}
        {%- set comments = [] -%}
        {%- for column in column_dict.values() -%}
            {%- set escaped = column.description | replace('\\', '\\\\') | replace("'", "\\'") -%}
            {%- do comments.append(adapter.quote(column.name) ~ " comment '" ~ escaped ~ "'") -%}
        {%- endfor -%}
        {%- do run_query('alter table ' ~ relation ~ ' alter column ' ~ comments | join(', ')) -%}
    {%- endif -%}
{% endmacro %}
