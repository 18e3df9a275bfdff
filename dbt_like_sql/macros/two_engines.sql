{#- The few things that Spark and DuckDB write differently.  Everything else in the project is SQL of both. -#}

{#- Timestamp of a log time (epoch ms). -#}
{% macro log_time(at_ms) %}{{ return(adapter.dispatch('log_time')(at_ms)) }}{% endmacro %}
{% macro default__log_time(at_ms) %}timestamp_millis({{ at_ms }}){% endmacro %}
{% macro duckdb__log_time(at_ms) %}make_timestamptz({{ at_ms }} * 1000){% endmacro %}


{#- Epoch milliseconds of a timestamp. -#}
{% macro millis(timestamp) %}{{ return(adapter.dispatch('millis')(timestamp)) }}{% endmacro %}
{% macro default__millis(timestamp) %}unix_millis({{ timestamp }}){% endmacro %}
{% macro duckdb__millis(timestamp) %}epoch_ms({{ timestamp }}){% endmacro %}


{#- Text of UTF-8 bytes. -#}
{% macro text_of(bytes) %}{{ return(adapter.dispatch('text_of')(bytes)) }}{% endmacro %}
{% macro default__text_of(bytes) %}cast({{ bytes }} as string){% endmacro %}
{% macro duckdb__text_of(bytes) %}try(decode({{ bytes }})){% endmacro %}


{#- Struct with these fields of a JSON text; null if the text is no JSON.  `fields` maps names to types: string, int or
    bigint, another map for a struct, or a list with one type for a list. -#}
{% macro parsed(json, fields) %}{{ return(adapter.dispatch('parsed')(json, fields)) }}{% endmacro %}
{% macro default__parsed(json, fields) %}from_json({{ json }}, '{{ type_of(fields) }}'){% endmacro %}
{% macro duckdb__parsed(json, fields) %}from_json(try_cast({{ json }} as json), '{{ tojson(fields) }}'){% endmacro %}

{% macro type_of(fields) -%}
    {%- if fields is string -%}
        {{ fields }}
    {%- elif fields is mapping -%}
        struct<
        {%- for name, type in fields.items() %}{{ name }}: {{ type_of(type) }}{{ ', ' if not loop.last }}{% endfor -%}
        >
    {%- else -%}
        array<{{ type_of(fields[0]) }}>
    {%- endif -%}
{%- endmacro %}


{#- One row per item of a list. -#}
{% macro each_of(list) %}{{ return(adapter.dispatch('each_of')(list)) }}{% endmacro %}
{% macro default__each_of(list) %}explode({{ list }}){% endmacro %}
{% macro duckdb__each_of(list) %}unnest({{ list }}){% endmacro %}


{% macro length_of(list) %}{{ return(adapter.dispatch('length_of')(list)) }}{% endmacro %}
{% macro default__length_of(list) %}array_size({{ list }}){% endmacro %}
{% macro duckdb__length_of(list) %}len({{ list }}){% endmacro %}


{#- Items of a list of texts, with a separator; null if the list is null. -#}
{% macro joined(list, separator) %}{{ return(adapter.dispatch('joined')(list, separator)) }}{% endmacro %}
{% macro default__joined(list, separator) %}array_join({{ list }}, '{{ separator }}'){% endmacro %}
{% macro duckdb__joined(list, separator) %}array_to_string({{ list }}, '{{ separator }}'){% endmacro %}


{#- Aggregate: sorted list of the different values. -#}
{% macro sorted_values(value) %}{{ return(adapter.dispatch('sorted_values')(value)) }}{% endmacro %}
{% macro default__sorted_values(value) %}array_sort(collect_set({{ value }})){% endmacro %}
{% macro duckdb__sorted_values(value) %}list(distinct {{ value }} order by {{ value }}){% endmacro %}


{#- Aggregate: texts in an order, separated by commas. -#}
{% macro listed(value, order_by) %}{{ return(adapter.dispatch('listed')(value, order_by)) }}{% endmacro %}
{% macro default__listed(value, order_by) %}listagg({{ value }}, ', ') within group (order by {{ order_by }}){% endmacro %}
{% macro duckdb__listed(value, order_by) %}string_agg({{ value }}, ', ' order by {{ order_by }}){% endmacro %}


{#- Window function: last value that is not null; `over (...)` follows. -#}
{% macro last_known(value) %}{{ return(adapter.dispatch('last_known')(value)) }}{% endmacro %}
{% macro default__last_known(value) %}last_value({{ value }}, true){% endmacro %}
{% macro duckdb__last_known(value) %}last_value({{ value }} ignore nulls){% endmacro %}
