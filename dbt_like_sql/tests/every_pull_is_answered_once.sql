-- Invariant 4: a pull has exactly one answer, at the latest at the first tick after its deadline, by the shard's clock.
--
-- A repeated pull gets no answer, nor does a rejected one, nor one whose number is not above the last of its instance.
with pulls as (select * from {{ ref('stg_pulls') }}),

wakes as (select * from {{ ref('stg_wakes') }}),

rejections as (select * from {{ ref('stg_rejections') }}),

events as (select * from {{ ref('stg_events') }}),

-- A tick that was rejected because of its signature does not advance the clock.
ticks as (
    select
        topic,
        partition,
        events.offset,
        {{ millis('event_at') }} - {{ millis('lag(event_at) over (partition by topic, partition order by events.offset)') }} as step_ms
    from events
    anti join rejections
        on
            events.topic = rejections.cause_topic
            and events.partition = rejections.cause_partition
            and events.offset = rejections.cause_offset
    where type = 'tick'
),

-- The clock advances by at most five seconds per tick; a longer gap is a dark log.
clocks as (
    select
        topic,
        partition,
        ticks.offset,
        sum(least(greatest(coalesce(step_ms, 0), 0), 5000)) over (partition by topic, partition order by ticks.offset) as clock_ms
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

-- A queue moves to a later partition when the number of partitions grows.
heard as (
    select
        pulls.*,
        max(request_number) over (
            partition by topic, broker, queue_id, group_id, client_id, instance_id
            order by pulls.partition, pulls.offset
            rows between unbounded preceding and 1 preceding
        ) as last_number
    from pulls
    anti join rejections
        on
            pulls.control_topic = rejections.cause_topic
            and pulls.partition = rejections.cause_partition
            and pulls.offset = rejections.cause_offset
),

-- A union of pulls and ticks: a join of each pull with all later ticks would be quadratic in the length of the log.
told as (
    select
        control_topic as topic,
        partition,
        heard.offset,
        client_id,
        request_id,
        timeout_ms,
        cast(null as bigint) as clock_ms
    from heard
    where request_number > coalesce(last_number, -1)
    union all
    select
        topic,
        partition,
        clocks.offset,
        null as client_id,
        null as request_id,
        null as timeout_ms,
        clock_ms
    from clocks
),

-- The clock never falls: the first tick after a pull has the smallest value.
timed as (
    select
        *,
        min(clock_ms) over (
            partition by topic, partition
            order by told.offset desc
            rows between unbounded preceding and current row
        ) as first_clock_ms,
        max(clock_ms) over (partition by topic, partition) as last_clock_ms
    from told
),

waited as (
    select
        client_id,
        request_id,
        timeout_ms,
        last_clock_ms - first_clock_ms as waited_ms
    from timed
    where request_id is not null
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
    anti join answers using (client_id, request_id)
    -- Decisions of the last tick may not be recorded yet.
    where waited.waited_ms > waited.timeout_ms + 10000
)

select * from final
