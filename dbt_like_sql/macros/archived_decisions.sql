{#- Decisions whose records are archived, without gaps; of older ones, retention keeps only the latest per subject. -#}
{% macro archived_decisions() %}
    select decisions.*
    from {{ ref('stg_decisions') }} as decisions
    left join (
        select
            topic,
            partition,
            min(events.offset) as first_offset
        from {{ ref('stg_events') }} as events
        group by topic, partition
    ) as archived on decisions.cause_topic = archived.topic and decisions.cause_partition = archived.partition
    where decisions.cause_offset >= coalesce(archived.first_offset, 0)
{% endmacro %}
