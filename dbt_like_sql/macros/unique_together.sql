{#- Test of a key of several columns: none of them is null, and no two rows have the same values. -#}
{% test unique_together(model, columns) %}
{%- set quoted = [] -%}
{%- for column in columns -%}{%- do quoted.append(adapter.quote(column)) -%}{%- endfor -%}
select
    {{ quoted | join(', ') }},
    count(*) as rows_found
from {{ model }}
group by {{ quoted | join(', ') }}
having count(*) > 1 {%- for column in quoted %} or {{ column }} is null {%- endfor %}
{% endtest %}
