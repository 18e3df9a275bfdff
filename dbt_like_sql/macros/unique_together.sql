{#- Test of a key of several columns: no two rows have the same values, and none is null except in `nullable` ones. -#}
{% test unique_together(model, columns, nullable=[]) %}
{%- set quoted, never_null = [], [] -%}
{%- for column in columns -%}
    {%- do quoted.append(adapter.quote(column)) -%}
    {%- if column not in nullable -%}{%- do never_null.append(adapter.quote(column)) -%}{%- endif -%}
{%- endfor -%}
select
    {{ quoted | join(', ') }},
    count(*) as rows_found
from {{ model }}
group by {{ quoted | join(', ') }}
having count(*) > 1 {%- for column in never_null %} or {{ column }} is null {%- endfor %}
{% endtest %}
