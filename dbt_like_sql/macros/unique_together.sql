{#- Test of a key of several columns: none of them is null, and no two rows have the same values. -#}
{% test unique_together(model, columns) %}
select
    {{ columns | join(', ') }},
    count(*) as rows_found
from {{ model }}
group by {{ columns | join(', ') }}
having count(*) > 1 {%- for column in columns %} or {{ column }} is null {%- endfor %}
{% endtest %}
