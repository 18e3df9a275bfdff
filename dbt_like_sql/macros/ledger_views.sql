{#- Made by `pipeline.questions.marts.views_macro`: `model.decision_order`, `pipeline.ledger.tables`; do not edit -#}

{#- The era of a row's shard, as a number: (era, seq) is the order of decisions. -#}
{% macro era() %}try_cast(split_part(shard, '.', -1) as int){% endmacro %}


{#- The ledger's views, name -> query. -#}
{% macro ledger_views() %}
{%- set found = {} -%}

{%- set query -%}
select said.`shard`, era, said.`seq`, said.`at_ms`, said.`cause`, said.`group_id`, said.`client_id`, said.`instance_id`, said.`change`, said.`epoch`, said.`detail`, published_ms from (select from_json(json, 'struct<shard:string,seq:bigint,at_ms:bigint,cause:struct<topic:string,partition:bigint,offset:bigint>,group_id:string,client_id:string,instance_id:string,change:string,epoch:bigint,detail:string>') as said, era, published_ms from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'membership')
{%- endset -%}
{%- do found.update({'memberships': query}) -%}

{%- set query -%}
select said.`shard`, era, said.`seq`, said.`at_ms`, said.`cause`, said.`group_id`, said.`epoch`, said.`trigger`, said.`causes`, said.`strategy`, said.`clients`, said.`queues`, said.`moved`, said.`unassigned`, said.`unassigned_count`, said.`spread`, said.`notes`, published_ms from (select from_json(json, 'struct<shard:string,seq:bigint,at_ms:bigint,cause:struct<topic:string,partition:bigint,offset:bigint>,group_id:string,epoch:bigint,trigger:string,causes:array<struct<topic:string,partition:bigint,offset:bigint>>,strategy:string,clients:bigint,queues:bigint,moved:bigint,unassigned:array<struct<queue:struct<topic:string,broker:string,queue_id:int>,reason:string>>,unassigned_count:bigint,spread:bigint,notes:array<string>>') as said, era, published_ms from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'rebalance')
{%- endset -%}
{%- do found.update({'rebalances': query}) -%}

{%- set query -%}
select said.`shard`, era, said.`seq`, said.`at_ms`, said.`cause`, said.`group_id`, said.`queue`, said.`from`, said.`to`, said.`epoch`, said.`revoked_ms`, said.`released_ms`, said.`assigned_ms`, said.`how`, published_ms from (select from_json(json, 'struct<shard:string,seq:bigint,at_ms:bigint,cause:struct<topic:string,partition:bigint,offset:bigint>,group_id:string,queue:struct<topic:string,broker:string,queue_id:int>,from:string,to:string,epoch:bigint,revoked_ms:bigint,released_ms:bigint,assigned_ms:bigint,how:string>') as said, era, published_ms from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'handover')
{%- endset -%}
{%- do found.update({'handovers': query}) -%}

{%- set query -%}
select said.`shard`, era, said.`seq`, said.`at_ms`, said.`cause`, said.`group_id`, said.`client_id`, said.`queue`, said.`outcome`, said.`until_ms`, published_ms from (select from_json(json, 'struct<shard:string,seq:bigint,at_ms:bigint,cause:struct<topic:string,partition:bigint,offset:bigint>,group_id:string,client_id:string,queue:struct<topic:string,broker:string,queue_id:int>,outcome:string,until_ms:bigint>') as said, era, published_ms from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'lock')
{%- endset -%}
{%- do found.update({'locks': query}) -%}

{%- set query -%}
select said.`shard`, era, said.`seq`, said.`at_ms`, said.`cause`, said.`request_id`, said.`group_id`, said.`client_id`, said.`queue`, said.`reason`, said.`next_offset`, said.`held_ms`, published_ms from (select from_json(json, 'struct<shard:string,seq:bigint,at_ms:bigint,cause:struct<topic:string,partition:bigint,offset:bigint>,request_id:string,group_id:string,client_id:string,queue:struct<topic:string,broker:string,queue_id:int>,reason:string,next_offset:bigint,held_ms:bigint>') as said, era, published_ms from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'wake')
{%- endset -%}
{%- do found.update({'wake_decisions': query}) -%}

{%- set query -%}
select said.`shard`, era, said.`seq`, said.`at_ms`, said.`cause`, said.`rule`, said.`detail`, said.`raw`, said.`group_id`, said.`client_id`, published_ms from (select from_json(json, 'struct<shard:string,seq:bigint,at_ms:bigint,cause:struct<topic:string,partition:bigint,offset:bigint>,rule:string,detail:string,raw:string,group_id:string,client_id:string>') as said, era, published_ms from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'rejected')
{%- endset -%}
{%- do found.update({'rejections': query}) -%}

{%- set query -%}
select said.`shard`, era, said.`seq`, said.`at_ms`, said.`cause`, said.`group_id`, said.`client_id`, said.`instance_id`, said.`reason`, said.`by`, published_ms from (select from_json(json, 'struct<shard:string,seq:bigint,at_ms:bigint,cause:struct<topic:string,partition:bigint,offset:bigint>,group_id:string,client_id:string,instance_id:string,reason:string,by:string>') as said, era, published_ms from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'fenced')
{%- endset -%}
{%- do found.update({'fencings': query}) -%}

{%- set query -%}
-- Who owns what now?  One row per (group_id, topic, broker, queue_id); client_id null: nobody.
--
-- A new era of a shard begins without owners: what an earlier one said of them is over.
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
-- How far is each queue consumed?  One row per (group_id, topic, broker, queue_id) of a clustering group; in a
-- broadcasting one each client has offsets of its own: one row per (group_id, client_id, topic, broker, queue_id).
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
-- A new era of a shard begins without members: what an earlier one said of them is over.  The change `replaced` stands in
-- ledgers that were written by protocol version 1, in which a new instance took the place of a live one.
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
    -- A conflict, and its end, do not say whether the client is a member.
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
-- Which groups are there, and how are they?  One row per group_id.
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

-- A broadcasting group has none, nor has one whose topics are not there.
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
-- Who waited for messages, for how long, and what ended it?  One row per pull.
--
-- at_ms is the log time of what woke it.  A pull that was answered at once was woken by no arrival, but by itself.
with causes as (
    select
        topic,
        partition,
        offset,
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

{{- return(found) -}}
{% endmacro %}
