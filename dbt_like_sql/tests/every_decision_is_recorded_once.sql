-- Invariants 5 and 6: a shard counts its decisions without gaps, and takes the records that cause them in order.
with decisions as (select * from {{ ref('stg_decisions') }}),

events as (select * from {{ ref('stg_events') }}),

-- Of what is older than the archived log only the last words are kept.
archived as (
    select
        topic,
        partition,
        min(offset) as first_offset
    from events
    group by topic, partition
),

whole as (
    select decisions.*
    from decisions
    left join archived on decisions.cause_topic = archived.topic and decisions.cause_partition = archived.partition
    where decisions.cause_offset >= coalesce(archived.first_offset, 0)
),

beside_the_last as (
    select
        *,
        lag(seq) over before_it as last_seq,
        lag(cause_offset) over before_it as last_cause_offset
    from whole
    window before_it as (partition by shard order by seq)
),

final as (
    select *
    from beside_the_last
    where seq <> last_seq + 1 or cause_offset < last_cause_offset
)

select * from final
