-- How healthy is each queue of a group?  One row per (group_id, topic, broker, queue_id, slice, offset_owner).
--
-- The rules are those of Burrow and need no threshold.  They evaluate the last commits, each with the lag after it.
--   STOP    no commit for longer than the duration of the window
--   REWIND  an offset decreased
--   STALL   the offset does not change, and the lag does not fall
--   WARN    the offset increases, and the lag never falls
--   OK      everything else, and every queue whose lag was 0 after one of these commits or is 0 now
-- One more status is ours:
--   UNCOMMITTED  an owner has had the queue for 30 s or longer, it has messages, and no offset was ever committed
with lag as (select * from {{ ref('consumer_lag') }}),

ownership as (select * from {{ ref('current_ownership') }}),

commits as (select * from {{ ref('stg_commits') }}),

offsets as (select * from {{ ref('stg_offsets') }}),

decisions as (select * from {{ ref('stg_decisions') }}),

queues as (select * from {{ ref('stg_queues') }}),

-- A reset by an operator is a step too.  The records of a group are in one partition, so their offsets order the steps.
-- When the number of partitions grows, a group may move, always to a later partition.
steps as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        client_id,
        committed_offset,
        committed_at,
        commits.partition as record_partition,
        commits.offset as record_offset
    from commits
    union all
    select
        offsets.group_id,
        offsets.topic,
        offsets.broker,
        offsets.queue_id,
        offsets.slice,
        offsets.client_id,
        offsets.committed_offset,
        offsets.committed_at,
        decisions.cause_partition as record_partition,
        decisions.cause_offset as record_offset
    from offsets
    inner join decisions using (shard, seq)
    where offsets.reset_by is not null
),

numbered as (
    select
        lag.group_id,
        lag.topic,
        lag.broker,
        lag.queue_id,
        lag.slice,
        lag.offset_owner,
        steps.committed_offset,
        steps.committed_at,
        row_number() over (
            partition by lag.group_id, lag.topic, lag.broker, lag.queue_id, lag.slice, lag.offset_owner
            order by steps.record_partition desc, steps.record_offset desc, steps.committed_offset desc
        ) as nth_newest
    from lag
    inner join steps on {{ same_queue('lag', 'steps') }}
    where lag.offset_owner in ('', steps.client_id)
),

recent as (select * from numbered where nth_newest <= {{ var('window_commits') }}),

-- A union of commits and reports of end offsets: a join of each commit with all earlier reports would be quadratic.
seen as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        offset_owner,
        nth_newest,
        committed_offset,
        committed_at,
        cast(null as bigint) as end_offset,
        committed_at as known_at
    from recent
    union all
    select
        null as group_id,
        topic,
        broker,
        queue_id,
        null as slice,
        null as offset_owner,
        null as nth_newest,
        null as committed_offset,
        null as committed_at,
        end_offset,
        seen_at as known_at
    from queues
),

-- End offset that was known at the time of a commit: that of the newest report before it, or at the same time.
ended as (
    select
        * except (end_offset),
        coalesce(
            {{ last_known('end_offset') }} over (
                partition by topic, broker, queue_id
                order by known_at, end_offset nulls last
                rows between unbounded preceding and current row
            ),
            committed_offset
        ) as end_offset
    from seen
),

told as (select * from ended where group_id is not null),

pairs as (
    select
        *,
        greatest(end_offset - committed_offset, 0) as lag_then,
        committed_offset - lead(committed_offset) over before_it as advanced,
        greatest(end_offset - committed_offset, 0)
        - lead(greatest(end_offset - committed_offset, 0)) over before_it as lag_grew
    from told
    window before_it as (partition by group_id, topic, broker, queue_id, slice, offset_owner order by nth_newest)
),

windows as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        offset_owner,
        count(*) as window_commits,
        min(committed_at) as window_from,
        max(committed_at) as window_to,
        bool_or(lag_then = 0) as had_caught_up,
        coalesce(bool_or(advanced < 0), false) as went_back,
        coalesce(bool_and(advanced = 0), false) as stands_still,
        coalesce(bool_and(lag_grew >= 0), false) as lag_never_falls
    from pairs
    group by group_id, topic, broker, queue_id, slice, offset_owner
),

final as (
    select
        lag.group_id,
        lag.topic,
        lag.broker,
        lag.queue_id,
        lag.slice,
        lag.offset_owner,
        case
            when lag.lag_messages = 0 then 'OK'
            when
                lag.lag_messages is null and {{ millis('lag.as_of') }} - {{ millis('ownership.owned_from') }} >= 30000
                then 'UNCOMMITTED'
            when
                {{ millis('lag.as_of') }} - {{ millis('windows.window_to') }}
                > {{ millis('windows.window_to') }} - {{ millis('windows.window_from') }}
                then 'STOP'
            when windows.had_caught_up then 'OK'
            when windows.went_back then 'REWIND'
            when windows.stands_still and windows.lag_never_falls then 'STALL'
            when windows.lag_never_falls then 'WARN'
            else 'OK'
        end as status,
        lag.lag_messages,
        coalesce(windows.window_commits, 0) as window_commits,
        windows.window_from,
        windows.window_to,
        lag.as_of
    from lag
    left join windows on {{ same_queue('lag', 'windows') }} and lag.offset_owner = windows.offset_owner
    left join ownership on {{ same_queue('lag', 'ownership') }}
)

select * from final
