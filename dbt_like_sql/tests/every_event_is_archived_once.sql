-- Invariant 5: no record of a control topic is missing or duplicated.  Retention deletes the oldest records first.
with events as (select * from {{ ref('stg_events') }}),

beside_the_last as (
    select
        topic,
        partition,
        events.offset,
        lag(events.offset) over (partition by topic, partition order by events.offset) as last_offset
    from events
),

final as (
    select *
    from beside_the_last
    where beside_the_last.offset <> last_offset + 1
)

select * from final
