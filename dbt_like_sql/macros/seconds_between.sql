{#- Seconds from one log time to the log time of a later decision; 0 if the log's clock stepped back in between. -#}
{% macro seconds_between(since, until) -%}
case when {{ until }} < {{ since }} then 0 else ({{ millis(until) }} - {{ millis(since) }}) / 1000 end
{%- endmacro %}
