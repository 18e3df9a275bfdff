-- Invariant 5: no record of a control topic is missing or duplicated.  Retention deletes the oldest records first.
--
-- Records that are lost on record may be missing.
with events as (select * from {{ ref('stg_events') }}),

losses as (select * from {{ ref('stg_losses') }}),

beside_the_last as (
    select
        topic,
        partition,
        events.offset,
        lag(events.offset) over (partition by topic, partition order by events.offset) as last_offset
    from events
),

final as (
    select beside_the_last.*
    from beside_the_last
    anti join losses
        on
            losses.table_name = 'events'
            and beside_the_last.topic = losses.topic
            and beside_the_last.partition = losses.partition
            and beside_the_last.offset > beside_the_last.last_offset + 1
            and losses.first_lost <= beside_the_last.last_offset + 1
            and losses.last_lost >= beside_the_last.offset - 1
    where beside_the_last.offset <> last_offset + 1
)

select * from final
