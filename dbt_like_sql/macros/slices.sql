{#- Slices: a partition may be cut for a group.  Then `slice` is a part of the identity of a queue; it is null otherwise. -#}

{#- Condition of a join: rows are about the same queue of the same group. -#}
{% macro same_queue(one, other) -%}
    {{ one }}.group_id = {{ other }}.group_id
    and {{ one }}.topic = {{ other }}.topic
    and {{ one }}.broker = {{ other }}.broker
    and {{ one }}.queue_id = {{ other }}.queue_id
    and {{ one }}.slice is not distinct from {{ other }}.slice
{%- endmacro %}


{#- Name of a queue for people, without its broker: orders-3, or orders-3/5of8 of a slice. -#}
{% macro queue_name() %}topic || '-' || queue_id || coalesce('/' || replace(slice, '/', 'of'), ''){% endmacro %}
