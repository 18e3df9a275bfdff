{#- Seconds from one log time to another that was decided no earlier: 0 where the log's clock stepped back in between. -#}
{% macro seconds_between(since, until) -%}
case when {{ until }} < {{ since }} then 0 else (unix_millis({{ until }}) - unix_millis({{ since }})) / 1000 end
{%- endmacro %}
