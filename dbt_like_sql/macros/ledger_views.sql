{#- Made by `questions.marts.views_macro` of `ledger.view_queries` in `wakeroll_pipeline`; do not edit. -#}

{#- Era of a row's shard, as a number; (era, seq) is the order of decisions. -#}
{% macro era() %}try_cast(split_part(shard, '.', -1) as int){% endmacro %}


{#- Views of the ledger: name -> query. -#}
{% macro ledger_views() %}
{%- set found = {} -%}

{%- set query -%}
select shard, era, seq, at_ms, cause, group_id, client_id, said.`instance_id` as `instance_id`, said.`change` as `change`, said.`epoch` as `epoch`, said.`detail` as `detail`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<instance_id:string,change:string,epoch:bigint,detail:string>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'membership') as parsed
{%- endset -%}
{%- do found.update({'memberships': query}) -%}

{%- set query -%}
select shard, era, seq, at_ms, cause, group_id, said.`epoch` as `epoch`, said.`trigger` as `trigger`, said.`causes` as `causes`, said.`strategy` as `strategy`, said.`clients` as `clients`, said.`queues` as `queues`, said.`moved` as `moved`, said.`unassigned` as `unassigned`, said.`unassigned_count` as `unassigned_count`, said.`spread` as `spread`, said.`notes` as `notes`, published_ms from (select shard, seq, group_id, at_ms, cause, era, published_ms, from_json(json, 'struct<epoch:bigint,trigger:string,causes:array<struct<topic:string,partition:bigint,offset:bigint>>,strategy:string,clients:bigint,queues:bigint,moved:bigint,unassigned:array<struct<queue:struct<topic:string,broker:string,queue_id:int>,reason:string>>,unassigned_count:bigint,spread:bigint,notes:array<string>>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'rebalance') as parsed
{%- endset -%}
{%- do found.update({'rebalances': query}) -%}

{%- set query -%}
select shard, era, seq, at_ms, cause, group_id, said.`queue` as `queue`, said.`from` as `from`, said.`to` as `to`, said.`epoch` as `epoch`, said.`revoked_ms` as `revoked_ms`, said.`released_ms` as `released_ms`, said.`assigned_ms` as `assigned_ms`, said.`how` as `how`, published_ms from (select shard, seq, group_id, at_ms, cause, era, published_ms, from_json(json, 'struct<queue:struct<topic:string,broker:string,queue_id:int>,from:string,to:string,epoch:bigint,revoked_ms:bigint,released_ms:bigint,assigned_ms:bigint,how:string>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'handover') as parsed
{%- endset -%}
{%- do found.update({'handovers': query}) -%}

{%- set query -%}
select shard, era, seq, at_ms, cause, group_id, client_id, said.`queue` as `queue`, said.`outcome` as `outcome`, said.`until_ms` as `until_ms`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<queue:struct<topic:string,broker:string,queue_id:int>,outcome:string,until_ms:bigint>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'lock') as parsed
{%- endset -%}
{%- do found.update({'locks': query}) -%}

{%- set query -%}
select shard, era, seq, at_ms, cause, group_id, client_id, said.`queue` as `queue`, said.`first_offset` as `first_offset`, said.`last_offset` as `last_offset`, said.`messages` as `messages`, said.`attempt` as `attempt`, said.`outcome` as `outcome`, said.`level` as `level`, said.`error` as `error`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<queue:struct<topic:string,broker:string,queue_id:int>,first_offset:bigint,last_offset:bigint,messages:bigint,attempt:bigint,outcome:string,level:bigint,error:string>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'failed') as parsed
{%- endset -%}
{%- do found.update({'failed_messages': query}) -%}

{%- set query -%}
select shard, era, seq, at_ms, cause, said.`request_id` as `request_id`, group_id, client_id, said.`queue` as `queue`, said.`reason` as `reason`, said.`next_offset` as `next_offset`, said.`held_ms` as `held_ms`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<request_id:string,queue:struct<topic:string,broker:string,queue_id:int>,reason:string,next_offset:bigint,held_ms:bigint>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'wake') as parsed
{%- endset -%}
{%- do found.update({'wake_decisions': query}) -%}

{%- set query -%}
select shard, era, seq, at_ms, cause, said.`rule` as `rule`, said.`detail` as `detail`, said.`raw` as `raw`, group_id, client_id, said.`partition` as `partition`, said.`partitions` as `partitions`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<rule:string,detail:string,raw:string,partition:bigint,partitions:bigint>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'rejected') as parsed
{%- endset -%}
{%- do found.update({'rejections': query}) -%}

{%- set query -%}
select shard, era, seq, at_ms, cause, group_id, client_id, said.`instance_id` as `instance_id`, said.`reason` as `reason`, said.`by` as `by`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<instance_id:string,reason:string,by:string>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'fenced') as parsed
{%- endset -%}
{%- do found.update({'fencings': query}) -%}

{%- set query -%}
with reports as (
    select at_ms, explode(from_json(cast(value as string), 'struct<queues:array<struct<topic:string,broker:string,queue_id:int,max_offset:bigint,min_offset:bigint>>>').queues) as said
    from ledger.events
    where type = 'route' and partition = 0
),

arrivals as (
    select at_ms, from_json(cast(value as string), 'struct<queue:struct<topic:string,broker:string,queue_id:int>,next_offset:bigint>') as said
    from ledger.events
    where type = 'arrival'
),

reported as (
    -- The JSON omits an offset of 0 in a route, and an empty broker. An arrival without an offset is no valid event.
    select
        said.topic,
        said.broker,
        said.queue_id,
        coalesce(said.max_offset, 0) as end_offset,
        coalesce(said.min_offset, 0) as first_offset,
        at_ms
    from reports
    union all
    select said.queue.topic, said.queue.broker, said.queue.queue_id, said.next_offset, null, at_ms
    from arrivals
),

final as (
    select
        topic,
        coalesce(broker, '') as broker,
        queue_id,
        max(end_offset) as end_offset,
        max(first_offset) as first_offset,
        at_ms
    from reported
    where topic is not null and queue_id is not null and end_offset >= 0
    group by topic, coalesce(broker, ''), queue_id, at_ms
)

select * from final
{%- endset -%}
{%- do found.update({'end_offsets': query}) -%}

{%- set query -%}
-- Who owns which queue now?  One row per (group_id, topic, broker, queue_id); client_id is null if no member owns it.
--
-- A new era of a shard begins without owners, so decisions of earlier eras do not count.
with newest_eras as (
    select
        split_part(shard, '.', 1) as shard_name,
        max(era) as era
    from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions
    group by 1
),

ranked as (
    select
        assignments.*,
        row_number() over (
            partition by group_id, topic, broker, queue_id
            order by assignments.era desc, assignments.seq desc
        ) as nth_newest
    from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.assignments) as assignments
    inner join newest_eras
        on split_part(assignments.shard, '.', 1) = newest_eras.shard_name and assignments.era = newest_eras.era
),

final as (
    select group_id, topic, broker, queue_id, client_id, epoch, from_ms, previous_client_id, how
    from ranked
    where nth_newest = 1
)

select * from final
{%- endset -%}
{%- do found.update({'current_assignments': query}) -%}

{%- set query -%}
-- What is the committed offset of each queue?
--
-- A clustering group has one row per (group_id, topic, broker, queue_id).  The clients of a broadcasting group have
-- their own offsets: one row per (group_id, client_id, topic, broker, queue_id).
with ranked as (
    select
        *,
        first_value(mode) over (partition by group_id order by era desc, seq desc) as group_mode,
        row_number() over (
            partition by
                group_id,
                mode,
                topic,
                broker,
                queue_id,
                case when mode = 'broadcasting' then client_id end
            order by era desc, seq desc
        ) as newest
    from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.offsets) as offsets
),

final as (
    select group_id, topic, broker, queue_id, client_id, committed_offset, epoch, at_ms, reset_by, mode
    from ranked
    where newest = 1 and mode = group_mode
)

select * from final
{%- endset -%}
{%- do found.update({'current_offsets': query}) -%}

{%- set query -%}
-- Who is in which group now?  One row per (group_id, client_id).
--
-- A new era of a shard begins without members, so decisions of earlier eras do not count.  The change `replaced` occurs
-- in ledgers of protocol version 1, in which a new instance replaced a live one.
with newest_eras as (
    select
        split_part(shard, '.', 1) as shard_name,
        max(era) as era
    from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions
    group by 1
),

changes as (
    select memberships.*
    from ledger.memberships
    inner join newest_eras
        on split_part(memberships.shard, '.', 1) = newest_eras.shard_name and memberships.era = newest_eras.era
    -- The changes `conflict` and `agreed` do not show whether the client is a member.
    where client_id <> '' and change not in ('conflict', 'agreed')
),

ranked as (
    select
        *,
        row_number() over (partition by group_id, client_id order by era desc, seq desc) as nth_newest,
        row_number() over (
            partition by group_id, client_id, instance_id, change in ('joined', 'replaced')
            order by era desc, seq desc
        ) as nth_newest_entry
    from changes
),

entered as (
    select
        group_id,
        client_id,
        instance_id,
        at_ms as joined_ms
    from ranked
    where change in ('joined', 'replaced') and nth_newest_entry = 1
),

owned as (
    select
        group_id,
        client_id,
        count(*) as queues
    from ledger.current_assignments
    where client_id is not null
    group by group_id, client_id
),

final as (
    select
        ranked.group_id,
        ranked.client_id,
        ranked.instance_id,
        entered.joined_ms,
        coalesce(owned.queues, 0) as queues
    from ranked
    inner join entered using (group_id, client_id, instance_id)
    left join owned using (group_id, client_id)
    where ranked.nth_newest = 1 and ranked.change in ('joined', 'resubscribed', 'replaced')
)

select * from final
{%- endset -%}
{%- do found.update({'current_members': query}) -%}

{%- set query -%}
-- Which groups exist, and what is their state?  One row per group_id.
with known as (
    select group_id from ledger.memberships
    union
    select group_id from ledger.rebalances
),

members as (
    select
        group_id,
        count(*) as members
    from ledger.current_members
    group by group_id
),

queues as (
    select
        group_id,
        count(client_id) as owned,
        count(*) - count(client_id) as unowned
    from ledger.current_assignments
    where not (how = 'removed' and client_id is null)
    group by group_id
),

ranked as (
    select
        *,
        row_number() over (partition by group_id order by era desc, seq desc) as nth_newest,
        row_number() over (partition by group_id, strategy = '' order by era desc, seq desc) as nth_newest_with_strategy
    from ledger.rebalances
),

rebalanced as (select * from ranked where nth_newest = 1),

-- A broadcasting group has no strategy, and a group without existing topics has none either.
strategies as (select * from ranked where nth_newest_with_strategy = 1 and strategy <> ''),

final as (
    select
        known.group_id,
        coalesce(rebalanced.epoch, 0) as epoch,
        coalesce(strategies.strategy, '') as strategy,
        coalesce(members.members, 0) as members,
        coalesce(queues.owned, 0) as owned,
        coalesce(queues.unowned, 0) as unowned,
        coalesce(rebalanced.trigger, '') as last_trigger,
        rebalanced.at_ms as last_rebalance_ms
    from known
    left join rebalanced using (group_id)
    left join members using (group_id)
    left join queues using (group_id)
    left join strategies using (group_id)
)

select * from final
{%- endset -%}
{%- do found.update({'groups': query}) -%}

{%- set query -%}
-- Which pulls were held, for how long, and which event ended the wait?  One row per pull.
--
-- at_ms is the log time of the event that ended the wait.  The pull itself causes the wake if it is answered at once.
with causes as (
    select
        topic,
        partition,
        events.offset,
        type
    from ledger.events
)

select
    wake_decisions.queue.topic,
    wake_decisions.queue.broker,
    wake_decisions.queue.queue_id,
    wake_decisions.group_id,
    wake_decisions.client_id,
    wake_decisions.request_id,
    wake_decisions.reason,
    wake_decisions.next_offset,
    wake_decisions.held_ms,
    wake_decisions.at_ms,
    wake_decisions.published_ms,
    case when causes.type = 'arrival' then wake_decisions.published_ms - wake_decisions.at_ms end as arrival_to_wake_ms,
    wake_decisions.shard,
    wake_decisions.era,
    wake_decisions.seq
from ledger.wake_decisions
left join causes
    on
        wake_decisions.cause.topic = causes.topic
        and wake_decisions.cause.partition = causes.partition
        and wake_decisions.cause.offset = causes.offset
{%- endset -%}
{%- do found.update({'wakes': query}) -%}

{%- set query -%}
-- How far behind is each group?  One row per (group_id, topic, broker, queue_id, client_id).
--
-- client_id is null unless the group broadcasts: then each client has offsets of its own.  "Now" is the newest log time
-- in the tables.  Messages that were deleted unread are no lag.  lag_ms is the age of the oldest report of an end offset
-- that is above the first unread one.  An owned queue without a committed offset has no lag if it has no messages;
-- otherwise its lag is not known: null.
with clock as (select max(at_ms) as as_of_ms from ledger.events),

ends as (
    select
        topic,
        broker,
        queue_id,
        -- The newest end offset, not the largest: a topic may be truncated.
        max_by(end_offset, at_ms) as end_offset,
        coalesce(max_by(first_offset, case when first_offset is not null then at_ms end), 0) as first_offset
    from ledger.end_offsets
    group by topic, broker, queue_id
),

committed as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        case when mode = 'broadcasting' then client_id end as client_id,
        committed_offset,
        at_ms as committed_ms
    from ledger.current_offsets
    union all
    select
        current_assignments.group_id,
        current_assignments.topic,
        current_assignments.broker,
        current_assignments.queue_id,
        null as client_id,
        null as committed_offset,
        null as committed_ms
    from ledger.current_assignments
    left join ledger.current_offsets using (group_id, topic, broker, queue_id)
    where current_assignments.client_id is not null and current_offsets.committed_offset is null
),

behind as (
    select
        committed.*,
        ends.end_offset,
        greatest(committed.committed_offset, ends.first_offset) as unread_offset,
        case
            when committed.committed_offset is not null
                then greatest(ends.end_offset - greatest(committed.committed_offset, ends.first_offset), 0)
            when ends.end_offset <= ends.first_offset then 0
        end as lag_messages
    from committed
    inner join ends using (topic, broker, queue_id)
),

waiting as (
    select
        behind.group_id,
        behind.topic,
        behind.broker,
        behind.queue_id,
        behind.client_id,
        min(end_offsets.at_ms) as since_ms
    from behind
    inner join ledger.end_offsets using (topic, broker, queue_id)
    where behind.lag_messages > 0 and end_offsets.end_offset > behind.unread_offset
    group by behind.group_id, behind.topic, behind.broker, behind.queue_id, behind.client_id
),

final as (
    select
        behind.group_id,
        behind.topic,
        behind.broker,
        behind.queue_id,
        behind.client_id,
        behind.committed_offset,
        behind.end_offset,
        behind.lag_messages,
        case when behind.lag_messages is not null then coalesce(clock.as_of_ms - waiting.since_ms, 0) end as lag_ms,
        behind.committed_ms,
        clock.as_of_ms
    from behind
    cross join clock
    left join waiting
        on
            behind.group_id = waiting.group_id
            and behind.topic = waiting.topic
            and behind.broker = waiting.broker
            and behind.queue_id = waiting.queue_id
            and coalesce(behind.client_id, '') = coalesce(waiting.client_id, '')
)

select * from final
{%- endset -%}
{%- do found.update({'lag': query}) -%}

{{- return(found) -}}
{% endmacro %}
