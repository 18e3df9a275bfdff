-- Invariant 4: a pull is answered once; at the latest by its deadline and a tick, by the shard's clock.
--
-- A repeated pull, and one whose number is not above the last of its instance, are silent; so is one that was refused.
with pulls as (select * from {{ ref('stg_pulls') }}),

wakes as (select * from {{ ref('stg_wakes') }}),

rejections as (select * from {{ ref('stg_rejections') }}),

events as (select * from {{ ref('stg_events') }}),

ticks as (
    select
        topic,
        partition,
        offset,
        unix_millis(event_at) - unix_millis(lag(event_at) over (partition by topic, partition order by offset)) as step_ms
    from events
    where type = 'tick'
),

-- A step of the clock counts five seconds at most: more is a dark log.
clocks as (
    select
        topic,
        partition,
        offset,
        sum(least(greatest(coalesce(step_ms, 0), 0), 5000)) over (partition by topic, partition order by offset) as clock_ms
    from ticks
),

answers as (
    select
        client_id,
        request_id,
        count(*) as answers
    from wakes
    group by client_id, request_id
),

heard as (
    select
        pulls.*,
        max(request_number) over (
            partition by topic, broker, queue_id, group_id, client_id, instance_id
            order by offset
            rows between unbounded preceding and 1 preceding
        ) as last_number
    from pulls
    left anti join rejections
        on
            pulls.control_topic = rejections.cause_topic
            and pulls.partition = rejections.cause_partition
            and pulls.offset = rejections.cause_offset
),

waited as (
    select
        heard.client_id,
        heard.request_id,
        heard.timeout_ms,
        max(clocks.clock_ms) - min(clocks.clock_ms) as waited_ms
    from heard
    inner join clocks
        on
            heard.control_topic = clocks.topic
            and heard.partition = clocks.partition
            and clocks.offset > heard.offset
    where heard.request_number > coalesce(heard.last_number, -1)
    group by heard.client_id, heard.request_id, heard.timeout_ms
),

final as (
    select
        client_id,
        request_id,
        answers
    from answers
    where answers > 1
    union all
    select
        waited.client_id,
        waited.request_id,
        0 as answers
    from waited
    left anti join answers using (client_id, request_id)
    -- What was decided at the last tick may not be recorded yet.
    where waited.waited_ms > waited.timeout_ms + 10000
)

select * from final
