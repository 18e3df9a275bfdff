{#- The era of a shard: groups-3.12 is in era 12.  As a number, for as text 9 comes after 12. -#}
{% macro era() %}cast(substring_index(shard, '.', -1) as int){% endmacro %}
