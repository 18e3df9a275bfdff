{#- Enforce the constraints `not_null` of a mart that Spark has built: Delta cannot add them to the columns of a table
    that exists, so this selects the rows that break one.  DuckDB has them in its `create table`. -#}
{% macro spark__alter_column_set_constraints(relation, column_dict) %}
    {%- set conditions = [] -%}
    {%- for column in column_dict.values() if column.constraints -%}
        {%- do conditions.append(adapter.quote(column.name) ~ ' is null') -%}
    {%- endfor -%}
    {%- if execute and conditions -%}
        {%- set broken = run_query('select count(*) from ' ~ relation ~ ' where ' ~ conditions | join(' or ')) -%}
        {%- if broken.columns[0].values()[0] > 0 -%}
            {%- do exceptions.raise_compiler_error(
                broken.columns[0].values()[0] ~ ' rows of ' ~ relation ~ ' break a constraint not_null: '
                ~ conditions | join(' or ')
            ) -%}
        {%- endif -%}
    {%- endif -%}
{% endmacro %}
