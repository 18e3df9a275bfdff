{#- Made by `questions.marts.views_macro` of `ledger.view_queries` in `wakeroll_pipeline`; do not edit. -#}

{#- Era of a row's shard, as a number; (era, seq) is the order of decisions. -#}
{% macro era() %}try_cast(split_part(shard, '.', -1) as int){% endmacro %}


{#- Condition of the hand-overs that the previous owner did not cause. -#}
{% macro is_abrupt() %}how not in ('first', 'released', 'unregistered', 'removed', 'cut'){% endmacro %}


{#- Slice of a structure with the fields of a queue, as the column `slice` has it. -#}
{% macro slice_of(queue) %}case when {{ queue }}.slices > 1 then concat(coalesce({{ queue }}.slice, 0), '/', {{ queue }}.slices) end{% endmacro %}


{#- Views of the ledger: name -> comments and query, as `create view NAME` expects them. -#}
{% macro ledger_views() %}
{%- set found = {} -%}

{%- set definition -%}
(`shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1', `at_ms` comment 'log time of the cause (epoch ms)', `log_time` comment 'log time of the cause (UTC)', `cause` comment 'The record that led to a decision', `group_id` comment 'name of the consumer group', `client_id` comment 'client that changed; empty if the change concerns the whole group', `instance_id` comment 'instance of the client; empty if the change concerns the whole group', `change` comment 'joined, left, died (its process ended), expired, gone (of a Kafka group: left or lost), kicked (by an operator), leaving (kicked, and still a member), readmitted (not kept out any more), resubscribed, described, conflict, agreed, inspected (an operator asked what it does), reported (its answer); of a whole group: matched (the topics of a pattern changed), emptied, forgotten, paused, resumed', `epoch` comment 'epoch of the group at the change', `detail` comment 'detail of the change, in words; empty if there is none', `host` comment 'host or pod that the client runs on; null if not told, or if the change is not joined or described', `sdk` comment 'library of the client and its version; null if not told, or if the change is not joined or described', `app_version` comment 'version of the application; null if not told, or if the change is not joined or described', `labels` comment 'labels that the application chose, as a JSON object; null if not told, or if the change is not joined or described', `pattern` comment 'regular expression of topics that the client subscribes, if the change is joined or resubscribed, or whose topics changed, if it is matched; absent if there is none', `published_ms` comment 'log time at which the broker appended the decision (epoch ms)', `published_at` comment 'log time at which the broker appended the decision (UTC)') comment 'A member joined, left, changed its topics or description, or conflicts; or the whole group changed.' as
select `shard`, `era`, `seq`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, try_cast(cause as struct<topic:string,partition:int,offset:bigint>) as cause, `group_id`, `client_id`, `instance_id`, `change`, `epoch`, `detail`, `host`, `sdk`, `app_version`, `labels`, `pattern`, `published_ms`, case when `published_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`published_ms`) end as published_at from (
select shard, era, seq, at_ms, cause, group_id, client_id, said.`instance_id` as `instance_id`, said.`change` as `change`, said.`epoch` as `epoch`, said.`detail` as `detail`, said.`about`.`host` as `host`, said.`about`.`sdk` as `sdk`, said.`about`.`app_version` as `app_version`, said.`about`.`labels` as `labels`, said.`pattern` as `pattern`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<instance_id:string,change:string,epoch:bigint,detail:string,about:struct<host:string,sdk:string,app_version:string,labels:string>,pattern:string>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'membership') as parsed
) as shown
{%- endset -%}
{%- do found.update({'memberships': definition}) -%}

{%- set definition -%}
(`shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1', `at_ms` comment 'log time of the cause (epoch ms)', `log_time` comment 'log time of the cause (UTC)', `cause` comment 'The record that led to a decision', `group_id` comment 'name of the consumer group', `epoch` comment 'epoch of the group; never decreases', `trigger` comment 'kind of the first change that required a new target', `causes` comment 'records that required a new target, at most the first 16', `strategy` comment 'strategy that assigned the queues; empty if none has', `clients` comment 'number of members, without those that were kicked', `queues` comment 'number of queues of the subscribed topics', `moved` comment 'number of queues that had an owner and get another one', `unassigned` comment 'queues that are assigned to no member, at most the first 256', `unassigned_count` comment 'number of queues that are assigned to no member, listed or not', `spread` comment 'largest minus smallest number of queues per member', `notes` comment 'notes for the operator, such as a strategy that failed', `published_ms` comment 'log time at which the broker appended the decision (epoch ms)', `published_at` comment 'log time at which the broker appended the decision (UTC)') comment 'A new target: its triggers, its size and its cost.' as
select `shard`, `era`, `seq`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, try_cast(cause as struct<topic:string,partition:int,offset:bigint>) as cause, `group_id`, `epoch`, `trigger`, `causes`, `strategy`, `clients`, `queues`, `moved`, `unassigned`, `unassigned_count`, `spread`, `notes`, `published_ms`, case when `published_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`published_ms`) end as published_at from (
select shard, era, seq, at_ms, cause, group_id, said.`epoch` as `epoch`, said.`trigger` as `trigger`, said.`causes` as `causes`, said.`strategy` as `strategy`, said.`clients` as `clients`, said.`queues` as `queues`, said.`moved` as `moved`, said.`unassigned` as `unassigned`, said.`unassigned_count` as `unassigned_count`, said.`spread` as `spread`, said.`notes` as `notes`, published_ms from (select shard, seq, group_id, at_ms, cause, era, published_ms, from_json(json, 'struct<epoch:bigint,trigger:string,causes:array<struct<topic:string,partition:int,offset:bigint>>,strategy:string,clients:bigint,queues:bigint,moved:bigint,unassigned:array<struct<queue:struct<topic:string,broker:string,queue_id:int,slices:int,slice:int>,reason:string>>,unassigned_count:bigint,spread:bigint,notes:array<string>>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'rebalance') as parsed
) as shown
{%- endset -%}
{%- do found.update({'rebalances': definition}) -%}

{%- set definition -%}
(`shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1', `at_ms` comment 'log time of the cause (epoch ms)', `log_time` comment 'log time of the cause (UTC)', `cause` comment 'The record that led to a decision', `group_id` comment 'name of the consumer group', `queue` comment 'A queue: for Kafka a partition of a topic, for RocketMQ a queue of a topic on a broker; or a slice of one', `from` comment 'previous owner; null if the queue never had one', `to` comment 'new owner; null if nobody owns the queue', `epoch` comment 'epoch of the group at the hand-over', `revoked_ms` comment 'log time of the revocation (epoch ms); null if the queue was not revoked', `revoked_at` comment 'log time of the revocation (UTC); null if the queue was not revoked', `released_ms` comment 'log time at which the queue became free (epoch ms); null if it had no owner', `released_at` comment 'log time at which the queue became free (UTC); null if it had no owner', `assigned_ms` comment 'log time of the assignment to the new owner (epoch ms); null if there is none', `assigned_at` comment 'log time of the assignment to the new owner (UTC); null if there is none', `how` comment 'how the queue became free', `published_ms` comment 'log time at which the broker appended the decision (epoch ms)', `published_at` comment 'log time at which the broker appended the decision (UTC)') comment 'A change of a queue\'s owner.' as
select `shard`, `era`, `seq`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, try_cast(cause as struct<topic:string,partition:int,offset:bigint>) as cause, `group_id`, `queue`, `from`, `to`, `epoch`, `revoked_ms`, case when `revoked_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`revoked_ms`) end as revoked_at, `released_ms`, case when `released_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`released_ms`) end as released_at, `assigned_ms`, case when `assigned_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`assigned_ms`) end as assigned_at, `how`, `published_ms`, case when `published_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`published_ms`) end as published_at from (
select shard, era, seq, at_ms, cause, group_id, said.`queue` as `queue`, said.`from` as `from`, said.`to` as `to`, said.`epoch` as `epoch`, said.`revoked_ms` as `revoked_ms`, said.`released_ms` as `released_ms`, said.`assigned_ms` as `assigned_ms`, said.`how` as `how`, published_ms from (select shard, seq, group_id, at_ms, cause, era, published_ms, from_json(json, 'struct<queue:struct<topic:string,broker:string,queue_id:int,slices:int,slice:int>,from:string,to:string,epoch:bigint,revoked_ms:bigint,released_ms:bigint,assigned_ms:bigint,how:string>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'handover') as parsed
) as shown
{%- endset -%}
{%- do found.update({'handovers': definition}) -%}

{%- set definition -%}
(`shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1', `at_ms` comment 'log time of the cause (epoch ms)', `log_time` comment 'log time of the cause (UTC)', `cause` comment 'The record that led to a decision', `group_id` comment 'name of the consumer group', `client_id` comment 'client that requested the lock, or had it', `queue` comment 'A queue: for Kafka a partition of a topic, for RocketMQ a queue of a topic on a broker; or a slice of one', `outcome` comment 'granted, refused; expired: not renewed in time; unlocked: returned, or the queue became free', `until_ms` comment 'end of the lock by the shard\'s clock (epoch ms); null unless granted', `until_at` comment 'end of the lock by the shard\'s clock (UTC); null unless granted', `published_ms` comment 'log time at which the broker appended the decision (epoch ms)', `published_at` comment 'log time at which the broker appended the decision (UTC)') comment 'The answer to a `lock` or `unlock` event for one queue; or the end of a lock, by time or with its queue.' as
select `shard`, `era`, `seq`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, try_cast(cause as struct<topic:string,partition:int,offset:bigint>) as cause, `group_id`, `client_id`, `queue`, `outcome`, `until_ms`, case when `until_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`until_ms`) end as until_at, `published_ms`, case when `published_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`published_ms`) end as published_at from (
select shard, era, seq, at_ms, cause, group_id, client_id, said.`queue` as `queue`, said.`outcome` as `outcome`, said.`until_ms` as `until_ms`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<queue:struct<topic:string,broker:string,queue_id:int,slices:int,slice:int>,outcome:string,until_ms:bigint>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'lock') as parsed
) as shown
{%- endset -%}
{%- do found.update({'locks': definition}) -%}

{%- set definition -%}
(`shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1', `at_ms` comment 'log time of the cause (epoch ms)', `log_time` comment 'log time of the cause (UTC)', `cause` comment 'The record that led to a decision', `group_id` comment 'name of the consumer group', `client_id` comment 'name of a member of the group', `queue` comment 'queue from which the messages were first delivered', `first_offset` comment 'lowest offset of the messages', `last_offset` comment 'highest offset of the messages', `messages` comment 'number of messages, not all between those offsets', `attempt` comment 'number of the failed attempt, from 1', `outcome` comment 'retry: processed again later; dead: in the dead letter topic', `level` comment 'delay level of the next attempt; 0 if there is none', `error` comment 'error of the last of these messages; empty if none is known', `published_ms` comment 'log time at which the broker appended the decision (epoch ms)', `published_at` comment 'log time at which the broker appended the decision (UTC)') comment 'Messages of one queue that a client\'s handler failed to process, as the client reports: retried later, or dead.' as
select `shard`, `era`, `seq`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, try_cast(cause as struct<topic:string,partition:int,offset:bigint>) as cause, `group_id`, `client_id`, `queue`, `first_offset`, `last_offset`, `messages`, `attempt`, `outcome`, `level`, `error`, `published_ms`, case when `published_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`published_ms`) end as published_at from (
select shard, era, seq, at_ms, cause, group_id, client_id, said.`queue` as `queue`, said.`first_offset` as `first_offset`, said.`last_offset` as `last_offset`, said.`messages` as `messages`, said.`attempt` as `attempt`, said.`outcome` as `outcome`, said.`level` as `level`, said.`error` as `error`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<queue:struct<topic:string,broker:string,queue_id:int,slices:int,slice:int>,first_offset:bigint,last_offset:bigint,messages:bigint,attempt:bigint,outcome:string,level:bigint,error:string>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'failed') as parsed
) as shown
{%- endset -%}
{%- do found.update({'failed_messages': definition}) -%}

{%- set definition -%}
(`shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1', `at_ms` comment 'log time of the cause (epoch ms)', `log_time` comment 'log time of the cause (UTC)', `cause` comment 'The record that led to a decision', `request_id` comment 'request_id of the pull', `group_id` comment 'name of the consumer group', `client_id` comment 'name of a member of the group', `queue` comment 'A queue: for Kafka a partition of a topic, for RocketMQ a queue of a topic on a broker; or a slice of one', `reason` comment 'why: arrival, skipped, timeout, superseded, cancelled, overflow, truncated, unknown', `next_offset` comment 'offset from which to pull again if the client finds nothing to read', `held_ms` comment 'time that the pull was held, by the shard\'s clock (ms)', `published_ms` comment 'log time at which the broker appended the decision (epoch ms)', `published_at` comment 'log time at which the broker appended the decision (UTC)') comment 'The one answer to a pull: the client must read again.' as
select `shard`, `era`, `seq`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, try_cast(cause as struct<topic:string,partition:int,offset:bigint>) as cause, `request_id`, `group_id`, `client_id`, `queue`, `reason`, `next_offset`, `held_ms`, `published_ms`, case when `published_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`published_ms`) end as published_at from (
select shard, era, seq, at_ms, cause, said.`request_id` as `request_id`, group_id, client_id, said.`queue` as `queue`, said.`reason` as `reason`, said.`next_offset` as `next_offset`, said.`held_ms` as `held_ms`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<request_id:string,queue:struct<topic:string,broker:string,queue_id:int,slices:int,slice:int>,reason:string,next_offset:bigint,held_ms:bigint>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'wake') as parsed
) as shown
{%- endset -%}
{%- do found.update({'wake_decisions': definition}) -%}

{%- set definition -%}
(`shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1', `at_ms` comment 'log time of the cause (epoch ms)', `log_time` comment 'log time of the cause (UTC)', `cause` comment 'The record that led to a decision', `rule` comment 'broken rule: json, type, bounds, key, partition, signature, stale, mode, limit, in-use, epoch, kicked, secret, commit, failures, reset, kick, delete, pause, inspect, pattern, settings, keys, pull, internal', `detail` comment 'what was found and what was expected', `raw` comment 'first 4 KiB of the record\'s value, in base64', `group_id` comment 'group of the record; null if not known', `client_id` comment 'client of the record; null if not known', `partition` comment 'partition to which the group or queue belongs; absent unless the rule is partition', `partitions` comment 'number of partitions of the control topic; absent unless the rule is partition', `published_ms` comment 'log time at which the broker appended the decision (epoch ms)', `published_at` comment 'log time at which the broker appended the decision (UTC)') comment 'An event that was rejected: the broken rule and the first bytes of the record.' as
select `shard`, `era`, `seq`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, try_cast(cause as struct<topic:string,partition:int,offset:bigint>) as cause, `rule`, `detail`, `raw`, `group_id`, `client_id`, `partition`, `partitions`, `published_ms`, case when `published_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`published_ms`) end as published_at from (
select shard, era, seq, at_ms, cause, said.`rule` as `rule`, said.`detail` as `detail`, said.`raw` as `raw`, group_id, client_id, said.`partition` as `partition`, said.`partitions` as `partitions`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<rule:string,detail:string,raw:string,partition:int,partitions:int>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'rejected') as parsed
) as shown
{%- endset -%}
{%- do found.update({'rejections': definition}) -%}

{%- set definition -%}
(`shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1', `at_ms` comment 'log time of the cause (epoch ms)', `log_time` comment 'log time of the cause (UTC)', `cause` comment 'The record that led to a decision', `group_id` comment 'name of the consumer group', `client_id` comment 'name of a member of the group', `instance_id` comment 'identifies one instance of a client; never reused', `reason` comment 'expired: no heartbeat for a session; left: unregistered; refused: no room, or another mode; duplicate: another live instance has the client_id; deaf: did not receive its assignments; epoch: showed an epoch that was never assigned; kicked: by an operator', `by` comment 'instance that has the client_id, if the reason is duplicate; operator, if it is kicked; else empty', `published_ms` comment 'log time at which the broker appended the decision (epoch ms)', `published_at` comment 'log time at which the broker appended the decision (UTC)') comment 'The message to one instance that it is no member any more and must drop all its queues.' as
select `shard`, `era`, `seq`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, try_cast(cause as struct<topic:string,partition:int,offset:bigint>) as cause, `group_id`, `client_id`, `instance_id`, `reason`, `by`, `published_ms`, case when `published_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`published_ms`) end as published_at from (
select shard, era, seq, at_ms, cause, group_id, client_id, said.`instance_id` as `instance_id`, said.`reason` as `reason`, said.`by` as `by`, published_ms from (select shard, seq, group_id, client_id, at_ms, cause, era, published_ms, from_json(json, 'struct<instance_id:string,reason:string,by:string>') as said from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions where kind = 'fenced') as parsed
) as shown
{%- endset -%}
{%- do found.update({'fencings': definition}) -%}

{%- set definition -%}
(`topic` comment 'name of the topic', `broker` comment 'broker of a queue; empty for Kafka', `queue_id` comment 'number of the queue in its topic, from 0', `end_offset` comment 'offset after the newest message of the queue', `first_offset` comment 'offset of the first message that is not deleted; null if only the end was reported', `at_ms` comment 'log time of the report (epoch ms)', `log_time` comment 'log time of the report (UTC)') comment 'One report of the first and end offset of a queue, by the observer or a producer.' as
select `topic`, `broker`, `queue_id`, `end_offset`, `first_offset`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time from (
with reports as (
    select at_ms, explode(from_json(cast(value as string), 'struct<queues:array<struct<topic:string,broker:string,queue_id:int,max_offset:bigint,min_offset:bigint>>>').queues) as said
    from ledger.events
    where type = 'route' and partition = 0
),

arrivals as (
    select at_ms, from_json(cast(value as string), 'struct<queue:struct<topic:string,broker:string,queue_id:int,slices:int,slice:int>,next_offset:bigint>') as said
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
) as shown
{%- endset -%}
{%- do found.update({'end_offsets': definition}) -%}

{%- set definition -%}
(`group_id` comment 'name of the consumer group', `topic` comment 'name of the topic', `broker` comment 'broker of a queue; empty for Kafka', `queue_id` comment 'number of the queue in its topic, from 0', `slice` comment 'slice of the partition: 5/8 is slice 5 (from 0) of 8; null if the partition is not cut', `client_id` comment 'owner; null if no member owns the queue', `epoch` comment 'epoch of the group at the change of owner', `from_ms` comment 'log time at which the ownership begins (epoch ms)', `from_at` comment 'log time at which the ownership begins (UTC)', `previous_client_id` comment 'previous owner; null if the queue never had one', `how` comment 'how the queue became free: first, released, unregistered, died, expired, ...', `shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1') comment 'A queue of a group, and its present owner.' as
select `group_id`, `topic`, `broker`, `queue_id`, `slice`, `client_id`, `epoch`, `from_ms`, case when `from_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`from_ms`) end as from_at, `previous_client_id`, `how`, `shard`, `era`, `seq` from (
-- Who owns which queue now?  One row per (group_id, topic, broker, queue_id, slice); client_id is null if no
-- member owns it.  Of a partition whose number of slices has changed, only the present queues have rows.
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
            partition by group_id, topic, broker, queue_id, slice
            order by assignments.era desc, assignments.seq desc
        ) as nth_newest
    from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.assignments) as assignments
    inner join newest_eras
        on split_part(assignments.shard, '.', 1) = newest_eras.shard_name and assignments.era = newest_eras.era
),

final as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        client_id,
        epoch,
        from_ms,
        previous_client_id,
        how,
        shard,
        era,
        seq
    from ranked
    where nth_newest = 1 and how <> 'cut'
)

select * from final
) as shown
{%- endset -%}
{%- do found.update({'current_assignments': definition}) -%}

{%- set definition -%}
(`group_id` comment 'name of the consumer group', `topic` comment 'name of the topic', `broker` comment 'broker of a queue; empty for Kafka', `queue_id` comment 'number of the queue in its topic, from 0', `slice` comment 'slice of the partition: 5/8 is slice 5 (from 0) of 8; null if the partition is not cut', `client_id` comment 'client that committed, or that owned the queue at a reset; empty if nobody owned it', `committed_offset` comment 'offset of the next message to consume', `epoch` comment 'epoch in which the client committed', `at_ms` comment 'log time of the commit (epoch ms)', `log_time` comment 'log time of the commit (UTC)', `reset_by` comment 'operator or `route` that reset the offset; null for a commit', `mode` comment 'clustering: the offset of the group; broadcasting: the offset of this client alone', `shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1') comment 'A queue of a group, and its committed offset now; in a broadcasting group, one row per client.' as
select `group_id`, `topic`, `broker`, `queue_id`, `slice`, `client_id`, `committed_offset`, `epoch`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, `reset_by`, `mode`, `shard`, `era`, `seq` from (
-- What is the committed offset of each queue?
--
-- A clustering group has one row per (group_id, topic, broker, queue_id, slice).  The clients of a broadcasting group have
-- their own offsets: one row per (group_id, client_id, topic, broker, queue_id).  Offsets that were deleted, also with
-- their group, have none.
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
                slice,
                case when mode = 'broadcasting' then client_id end
            order by era desc, seq desc
        ) as newest
    from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.offsets) as offsets
),

forgotten as (
    select
        group_id,
        era,
        seq
    from ledger.memberships
    where change = 'forgotten'
),

final as (
    select
        ranked.group_id,
        ranked.topic,
        ranked.broker,
        ranked.queue_id,
        ranked.slice,
        ranked.client_id,
        ranked.committed_offset,
        ranked.epoch,
        ranked.at_ms,
        ranked.reset_by,
        ranked.mode,
        ranked.shard,
        ranked.era,
        ranked.seq
    from ranked
    left join forgotten
        on
            ranked.group_id = forgotten.group_id
            and (
                ranked.era < forgotten.era
                or (ranked.era = forgotten.era and ranked.seq < forgotten.seq)
            )
    where ranked.newest = 1 and ranked.mode = ranked.group_mode and ranked.deleted is null and forgotten.group_id is null
)

select * from final
) as shown
{%- endset -%}
{%- do found.update({'current_offsets': definition}) -%}

{%- set definition -%}
(`group_id` comment 'name of the consumer group', `client_id` comment 'name of a member of the group', `instance_id` comment 'identifies one instance of a client; never reused', `joined_ms` comment 'log time at which the instance joined (epoch ms)', `joined_at` comment 'log time at which the instance joined (UTC)', `queues` comment 'number of queues that the member owns', `host` comment 'host or pod that the client runs on; null if it did not tell', `sdk` comment 'library of the client and its version; null if it did not tell', `app_version` comment 'version of the application; null if it did not tell', `labels` comment 'labels that the application chose, as a JSON object; null if there are none', `pattern` comment 'regular expression of topics that the client subscribes; null if there is none', `shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision by which the instance joined') comment 'A member of a group now.' as
select `group_id`, `client_id`, `instance_id`, `joined_ms`, case when `joined_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`joined_ms`) end as joined_at, `queues`, `host`, `sdk`, `app_version`, `labels`, `pattern`, `shard`, `era`, `seq` from (
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
    -- Other changes, such as `conflict` or `leaving`, do not show whether the client is a member.
    where
        client_id <> ''
        and change in ('joined', 'resubscribed', 'described', 'replaced', 'left', 'died', 'expired', 'gone', 'kicked')
),

ranked as (
    select
        *,
        row_number() over (partition by group_id, client_id order by era desc, seq desc) as nth_newest,
        row_number() over (
            partition by group_id, client_id, instance_id, change in ('joined', 'replaced')
            order by era desc, seq desc
        ) as nth_newest_entry,
        row_number() over (
            partition by group_id, client_id, instance_id, change in ('joined', 'described')
            order by era desc, seq desc
        ) as nth_newest_description,
        row_number() over (
            partition by group_id, client_id, instance_id, change in ('joined', 'resubscribed')
            order by era desc, seq desc
        ) as nth_newest_subscription
    from changes
),

entered as (
    select
        group_id,
        client_id,
        instance_id,
        at_ms as joined_ms,
        shard,
        era,
        seq
    from ranked
    where change in ('joined', 'replaced') and nth_newest_entry = 1
),

-- The client describes itself when it joins, and later if its description has changed or was lost.
described as (
    select
        group_id,
        client_id,
        instance_id,
        host,
        sdk,
        app_version,
        labels
    from ranked
    where change in ('joined', 'described') and nth_newest_description = 1
),

-- `matched` is about the whole group, so the client's own changes show its pattern.
subscribed as (
    select
        group_id,
        client_id,
        instance_id,
        pattern
    from ranked
    where change in ('joined', 'resubscribed') and nth_newest_subscription = 1
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
        coalesce(owned.queues, 0) as queues,
        described.host,
        described.sdk,
        described.app_version,
        described.labels,
        subscribed.pattern,
        entered.shard,
        entered.era,
        entered.seq
    from ranked
    inner join entered using (group_id, client_id, instance_id)
    left join described using (group_id, client_id, instance_id)
    left join subscribed using (group_id, client_id, instance_id)
    left join owned using (group_id, client_id)
    where ranked.nth_newest = 1 and ranked.change in ('joined', 'resubscribed', 'described', 'replaced')
)

select * from final
) as shown
{%- endset -%}
{%- do found.update({'current_members': definition}) -%}

{%- set definition -%}
(`group_id` comment 'name of the consumer group', `epoch` comment 'epoch of the group; 0 before its first rebalance', `strategy` comment 'strategy that assigned the queues; empty if none has', `members` comment 'number of members, without those that were kicked', `owned` comment 'number of queues that have an owner', `unowned` comment 'number of queues that no member owns', `last_trigger` comment 'trigger of the last rebalance; empty before the first one', `last_rebalance_ms` comment 'log time of the last rebalance (epoch ms); null before the first one', `last_rebalance_at` comment 'log time of the last rebalance (UTC); null before the first one') comment 'A group, and its state now.' as
select `group_id`, `epoch`, `strategy`, `members`, `owned`, `unowned`, `last_trigger`, `last_rebalance_ms`, case when `last_rebalance_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`last_rebalance_ms`) end as last_rebalance_at from (
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
) as shown
{%- endset -%}
{%- do found.update({'groups': definition}) -%}

{%- set definition -%}
(`topic` comment 'name of the topic', `broker` comment 'broker of a queue; empty for Kafka', `queue_id` comment 'number of the queue in its topic, from 0', `group_id` comment 'name of the consumer group', `client_id` comment 'name of a member of the group', `request_id` comment 'identifier of the pull: <instance_id>:<number>', `reason` comment 'why: arrival, skipped, timeout, superseded, cancelled, overflow, truncated, unknown', `next_offset` comment 'offset from which to pull again if the client finds nothing to read', `held_ms` comment 'time that the pull was held, by the shard\'s clock (ms)', `at_ms` comment 'log time of the event that ended the wait (epoch ms)', `log_time` comment 'log time of the event that ended the wait (UTC)', `published_ms` comment 'log time at which the broker appended the decision (epoch ms)', `published_at` comment 'log time at which the broker appended the decision (UTC)', `arrival_to_wake_ms` comment 'time from the arrival of a message to the wake (ms); null if no arrival ended the wait', `shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard, from 1') comment 'A pull: how long it was held, and which event ended the wait.' as
select `topic`, `broker`, `queue_id`, `group_id`, `client_id`, `request_id`, `reason`, `next_offset`, `held_ms`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, `published_ms`, case when `published_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`published_ms`) end as published_at, `arrival_to_wake_ms`, `shard`, `era`, `seq` from (
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
) as shown
{%- endset -%}
{%- do found.update({'wakes': definition}) -%}

{%- set definition -%}
(`group_id` comment 'name of the consumer group', `topic` comment 'name of the topic', `broker` comment 'broker of a queue; empty for Kafka', `queue_id` comment 'number of the queue in its topic, from 0', `slice` comment 'slice of the partition: 5/8 is slice 5 (from 0) of 8; null if the partition is not cut', `client_id` comment 'owner that expired', `instance_id` comment 'its instance', `to_client_id` comment 'new owner; null if there is none', `silent_ms` comment 'time from the last heartbeat of the owner to its expiration, by the shard\'s clock (ms)', `heard_ms` comment 'log time of that heartbeat (epoch ms); later if the shard\'s clock stood still meanwhile', `heard_at` comment 'log time of that heartbeat (UTC); later if the shard\'s clock stood still meanwhile', `returned_ms` comment 'log time at which the instance sent another record (epoch ms); null if it never did', `returned_at` comment 'log time at which the instance sent another record (UTC); null if it never did', `at_ms` comment 'log time of the hand-over (epoch ms)', `log_time` comment 'log time of the hand-over (UTC)', `shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the hand-over in its shard') comment 'A queue whose owner expired: how long nobody had read it before it was handed over.' as
select `group_id`, `topic`, `broker`, `queue_id`, `slice`, `client_id`, `instance_id`, `to_client_id`, `silent_ms`, `heard_ms`, case when `heard_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`heard_ms`) end as heard_at, `returned_ms`, case when `returned_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`returned_ms`) end as returned_at, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, `shard`, `era`, `seq` from (
-- How long did nobody read a queue before its owner expired?  One row per hand-over of such a queue.
--
-- A member that was killed, or cannot reach Kafka, keeps its queues until its session ends.  A fence at a later log time
-- than the expiration answers a record of the same instance: its process was alive.
with lost as (
    select
        shard,
        era,
        seq,
        at_ms,
        group_id,
        queue,
        case when queue.slices > 1 then concat(coalesce(queue.slice, 0), '/', queue.slices) end as slice,
        handovers.from as client_id,
        handovers.to as to_client_id
    from ledger.handovers
    where how = 'expired'
),

expirations as (
    select
        memberships.*,
        cast(nullif(regexp_extract(detail, 'no heartbeat for ([0-9]+) ms', 1), '') as bigint) as silent_ms
    from ledger.memberships
    where change = 'expired'
),

ended as (
    select
        lost.shard,
        lost.seq,
        max_by(expirations.instance_id, (expirations.era, expirations.seq)) as instance_id,
        max_by(expirations.at_ms, (expirations.era, expirations.seq)) as expired_ms,
        max_by(expirations.silent_ms, (expirations.era, expirations.seq)) as silent_ms
    from lost
    inner join expirations
        on
            lost.group_id = expirations.group_id
            and lost.client_id = expirations.client_id
            and (expirations.era, expirations.seq) < (lost.era, lost.seq)
    group by lost.shard, lost.seq
),

answered as (
    select
        ended.shard,
        ended.seq,
        min(fencings.at_ms) as returned_ms
    from ended
    inner join lost using (shard, seq)
    inner join ledger.fencings
        on
            lost.group_id = fencings.group_id
            and lost.client_id = fencings.client_id
            and ended.instance_id = fencings.instance_id
            and ended.expired_ms < fencings.at_ms
    where fencings.reason in ('expired', 'kicked')
    group by ended.shard, ended.seq
),

final as (
    select
        lost.group_id,
        lost.queue.topic,
        lost.queue.broker,
        lost.queue.queue_id,
        lost.slice,
        lost.client_id,
        ended.instance_id,
        lost.to_client_id,
        ended.silent_ms,
        ended.expired_ms - ended.silent_ms as heard_ms,
        answered.returned_ms,
        lost.at_ms,
        lost.shard,
        lost.era,
        lost.seq
    from lost
    inner join ended using (shard, seq)
    left join answered using (shard, seq)
)

select * from final
) as shown
{%- endset -%}
{%- do found.update({'silences': definition}) -%}

{%- set definition -%}
(`group_id` comment 'name of the consumer group', `topic` comment 'name of the topic', `broker` comment 'broker of a queue; empty for Kafka', `queue_id` comment 'number of the queue in its topic, from 0', `slice` comment 'slice of the partition: 5/8 is slice 5 (from 0) of 8; null if the partition is not cut', `client_id` comment 'owner before', `to_client_id` comment 'new owner', `epoch` comment 'epoch of the group at the change of owner', `how` comment 'how the queue became free: first, released, unregistered, died, expired, ...', `until_ms` comment 'log time until which the owner before may have read the queue (epoch ms): an interval of heartbeats after the last one of an owner that was killed, otherwise the hand-over', `until_at` comment 'log time until which the owner before may have read the queue (UTC): an interval of heartbeats after the last one of an owner that was killed, otherwise the hand-over', `committed_offset` comment 'committed offset at the hand-over; null if none was committed', `end_offset` comment 'offset after the newest message at that time; null if it was not reported', `repeats_possible` comment 'upper bound of the messages that are read again; 0 if one of the two offsets is not known', `at_ms` comment 'log time of the hand-over (epoch ms)', `log_time` comment 'log time of the hand-over (UTC)', `shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the hand-over in its shard') comment 'A hand-over of a queue whose owner had not released it, and how many messages the new owner may read again.' as
select `group_id`, `topic`, `broker`, `queue_id`, `slice`, `client_id`, `to_client_id`, `epoch`, `how`, `until_ms`, case when `until_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`until_ms`) end as until_at, `committed_offset`, `end_offset`, `repeats_possible`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, `shard`, `era`, `seq` from (
-- How many messages may the new owner of a queue read again?  One row per hand-over that the old owner did not cause.
--
-- The number is a bound: an owner that was killed read nothing later than one interval of heartbeats after its last one,
-- and one that lives read until its queue was handed over.  Reports of end offsets show what there was to read.  The
-- observer reports growth within five seconds, so a report in the ten seconds after that time counts.
with moved as (
    select
        shard,
        era,
        seq,
        at_ms,
        group_id,
        queue.topic as topic,
        queue.broker as broker,
        queue.queue_id as queue_id,
        case when queue.slices > 1 then concat(coalesce(queue.slice, 0), '/', queue.slices) end as slice,
        handovers.from as client_id,
        handovers.to as to_client_id,
        epoch,
        how
    from ledger.handovers
    where
        how not in ('first', 'released', 'unregistered', 'removed', 'cut')
        and handovers.from is not null
        and handovers.to is not null
),

intervals as (
    select
        era,
        seq,
        group_id,
        client_id,
        cast(nullif(regexp_extract(json, '"heartbeat_ms":([0-9]{1,9})', 1), '') as bigint) as heartbeat_ms
    from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.decisions) as decisions
    where kind = 'assignment'
),

demanded as (
    select
        moved.shard,
        moved.seq,
        max_by(intervals.heartbeat_ms, (intervals.era, intervals.seq)) as heartbeat_ms
    from moved
    inner join intervals
        on
            moved.group_id = intervals.group_id
            and moved.client_id = intervals.client_id
            and (intervals.era, intervals.seq) < (moved.era, moved.seq)
    group by moved.shard, moved.seq
),

lived as (
    select
        moved.*,
        case
            when moved.how = 'expired' and silences.returned_ms is null
                then coalesce(silences.heard_ms + demanded.heartbeat_ms, moved.at_ms)
            -- The old owner of an eager hand-over learns of it with the answer to its next heartbeat at the latest.
            when moved.how = 'eager' then moved.at_ms + coalesce(demanded.heartbeat_ms, 0)
            else moved.at_ms
        end as until_ms
    from moved
    left join ledger.silences using (shard, seq)
    left join demanded using (shard, seq)
),

-- The commits of these groups and their hand-overs, in one order: so the work does not grow with their product.
advances as (
    select
        shard,
        era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        committed_offset
    from (select *, try_cast(split_part(shard, '.', -1) as int) as era from ledger.offsets) as offsets
    where group_id in (select moved.group_id from moved)
    union all
    select
        shard,
        era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        null as committed_offset
    from moved
),

committed as (
    select
        shard,
        seq,
        max_by(committed_offset, case when committed_offset is not null then (era, seq) end) over (
            partition by group_id, topic, broker, queue_id, slice
            order by era, seq
            rows between unbounded preceding and current row
        ) as committed_offset
    from advances
),

-- A hand-over stands before the reports of its last moment.
reports as (
    select
        null as shard,
        null as seq,
        topic,
        broker,
        queue_id,
        at_ms as until_ms,
        1 as place,
        end_offset
    from ledger.end_offsets
    union all
    select
        shard,
        seq,
        topic,
        broker,
        queue_id,
        until_ms,
        0 as place,
        null as end_offset
    from lived
),

around as (
    select
        shard,
        seq,
        until_ms,
        max_by(end_offset, case when place = 1 then until_ms end) over (
            partition by topic, broker, queue_id
            order by until_ms, place
            rows between unbounded preceding and current row
        ) as end_before,
        min_by(end_offset, case when place = 1 then until_ms end) over (
            partition by topic, broker, queue_id
            order by until_ms, place
            rows between current row and unbounded following
        ) as end_after,
        min(case when place = 1 then until_ms end) over (
            partition by topic, broker, queue_id
            order by until_ms, place
            rows between current row and unbounded following
        ) as after_ms
    from reports
),

readable as (
    select
        shard,
        seq,
        case when after_ms <= until_ms + 10000 then end_after else end_before end as end_offset
    from around
    where seq is not null
),

final as (
    select
        lived.group_id,
        lived.topic,
        lived.broker,
        lived.queue_id,
        lived.slice,
        lived.client_id,
        lived.to_client_id,
        lived.epoch,
        lived.how,
        lived.until_ms,
        committed.committed_offset,
        readable.end_offset,
        greatest(readable.end_offset - committed.committed_offset, 0) as repeats_possible,
        lived.at_ms,
        lived.shard,
        lived.era,
        lived.seq
    from lived
    inner join committed using (shard, seq)
    inner join readable using (shard, seq)
)

select * from final
) as shown
{%- endset -%}
{%- do found.update({'repeats': definition}) -%}

{%- set definition -%}
(`group_id` comment 'name of the consumer group', `client_id` comment 'client that changed', `instance_id` comment 'its instance', `change` comment 'joined, left, expired', `is_join` comment 'whether it joined', `is_return` comment 'whether it joined, and its last change before was its end', `host` comment 'host or pod that the instance runs on; null if it never told', `app_version` comment 'version of its application; empty if it never told', `version_before` comment 'version at the last change of the client before; null if there was none', `at_ms` comment 'log time of the change (epoch ms)', `log_time` comment 'log time of the change (UTC)', `shard` comment 'shard that made the decision: topic-partition.era, such as groups-3.1', `era` comment 'era of the shard, as a number; (era, seq) is the order of decisions', `seq` comment 'number of the decision in its shard') comment 'A member joined, left or expired: whether it came back, and as which version.' as
select `group_id`, `client_id`, `instance_id`, `change`, `is_join`, `is_return`, `host`, `app_version`, `version_before`, `at_ms`, case when `at_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`at_ms`) end as log_time, `shard`, `era`, `seq` from (
-- When did members join and leave, and did they come back, as which version?  One row per change of one member.
--
-- A client describes itself when it joins, or later; the newest description of an instance counts for all its changes.
with described as (
    select
        group_id,
        client_id,
        instance_id,
        max_by(host, (era, seq)) as host,
        max_by(app_version, (era, seq)) as app_version
    from ledger.memberships
    where change in ('joined', 'described') and coalesce(host, app_version) is not null
    group by group_id, client_id, instance_id
),

changes as (
    select
        memberships.group_id,
        memberships.client_id,
        memberships.instance_id,
        memberships.change,
        memberships.change = 'joined' as is_join,
        described.host,
        coalesce(described.app_version, '') as app_version,
        memberships.at_ms,
        memberships.shard,
        memberships.era,
        memberships.seq
    from ledger.memberships
    left join described using (group_id, client_id, instance_id)
    where memberships.change in ('joined', 'left', 'died', 'expired', 'gone', 'kicked')
),

followed as (
    select
        *,
        lag(is_join) over (partition by group_id, client_id order by era, seq) as was_join,
        lag(app_version) over (partition by group_id, client_id order by era, seq) as version_before
    from changes
),

final as (
    select
        group_id,
        client_id,
        instance_id,
        change,
        is_join,
        coalesce(is_join and not was_join, false) as is_return,
        host,
        app_version,
        version_before,
        at_ms,
        shard,
        era,
        seq
    from followed
)

select * from final
) as shown
{%- endset -%}
{%- do found.update({'member_changes': definition}) -%}

{%- set definition -%}
(`group_id` comment 'name of the consumer group', `topic` comment 'name of the topic', `broker` comment 'broker of a queue; empty for Kafka', `queue_id` comment 'number of the queue in its topic, from 0', `slice` comment 'slice of the partition: 5/8 is slice 5 (from 0) of 8; null if the partition is not cut', `client_id` comment 'client of a broadcasting group; null in a clustering group, which shares offsets', `committed_offset` comment 'offset of the next message to consume; null if none was ever committed', `end_offset` comment 'offset after the newest message of the queue, in the newest report', `lag_messages` comment 'messages that exist and are not consumed; null if that is not known', `lag_ms` comment 'age of the oldest message that is not consumed (ms); 0 if there is none, null if not known', `committed_ms` comment 'log time of the last commit (epoch ms); null if there was none', `committed_at` comment 'log time of the last commit (UTC); null if there was none', `as_of_ms` comment 'newest log time in the tables (epoch ms)', `as_of` comment 'newest log time in the tables (UTC)') comment 'A queue of a group, and how far the group is behind; in a broadcasting group, one row per client.' as
select `group_id`, `topic`, `broker`, `queue_id`, `slice`, `client_id`, `committed_offset`, `end_offset`, `lag_messages`, `lag_ms`, `committed_ms`, case when `committed_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`committed_ms`) end as committed_at, `as_of_ms`, case when `as_of_ms` between -62135596800000 and 253402300799999 then timestamp_millis(`as_of_ms`) end as as_of from (
-- How far behind is each group?  One row per (group_id, topic, broker, queue_id, slice, client_id).
--
-- A slice is behind by the messages of its whole partition above its committed offset, so this is an upper bound: some of
-- them are in other slices.  A partition is behind as far as the slice with the lowest offset: do not add slices up.
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
        slice,
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
        current_assignments.slice,
        null as client_id,
        null as committed_offset,
        null as committed_ms
    from ledger.current_assignments
    left join ledger.current_offsets
        on
            current_assignments.group_id = current_offsets.group_id
            and current_assignments.topic = current_offsets.topic
            and current_assignments.broker = current_offsets.broker
            and current_assignments.queue_id = current_offsets.queue_id
            and current_assignments.slice is not distinct from ledger.current_offsets.slice
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
        behind.slice,
        behind.client_id,
        min(end_offsets.at_ms) as since_ms
    from behind
    inner join ledger.end_offsets using (topic, broker, queue_id)
    where behind.lag_messages > 0 and end_offsets.end_offset > behind.unread_offset
    group by behind.group_id, behind.topic, behind.broker, behind.queue_id, behind.slice, behind.client_id
),

final as (
    select
        behind.group_id,
        behind.topic,
        behind.broker,
        behind.queue_id,
        behind.slice,
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
            and behind.slice is not distinct from waiting.slice
            and coalesce(behind.client_id, '') = coalesce(waiting.client_id, '')
)

select * from final
) as shown
{%- endset -%}
{%- do found.update({'lag': definition}) -%}

{{- return(found) -}}
{% endmacro %}


{#- Tables of the ledger: name -> query of no rows, for a ledger of an earlier release that lacks the table. -#}
{% macro empty_tables() %}
    {{- return({
        'events': 'select cast(null as string) as topic, cast(null as int) as partition, cast(null as bigint) as offset, cast(null as bigint) as at_ms, cast(null as binary) as key, cast(null as binary) as value, cast(null as string) as type where false',
        'decisions': 'select cast(null as string) as shard, cast(null as bigint) as seq, cast(null as string) as kind, cast(null as string) as group_id, cast(null as string) as client_id, cast(null as bigint) as at_ms, cast(null as struct<topic:string,partition:bigint,offset:bigint>) as cause, cast(null as bigint) as published_ms, cast(null as int) as partition, cast(null as string) as json where false',
        'assignments': 'select cast(null as string) as shard, cast(null as bigint) as seq, cast(null as int) as partition, cast(null as string) as group_id, cast(null as string) as topic, cast(null as string) as broker, cast(null as int) as queue_id, cast(null as string) as slice, cast(null as string) as client_id, cast(null as bigint) as epoch, cast(null as bigint) as from_ms, cast(null as string) as previous_client_id, cast(null as string) as how where false',
        'offsets': 'select cast(null as string) as shard, cast(null as bigint) as seq, cast(null as int) as partition, cast(null as string) as group_id, cast(null as string) as topic, cast(null as string) as broker, cast(null as int) as queue_id, cast(null as string) as slice, cast(null as string) as client_id, cast(null as bigint) as committed_offset, cast(null as bigint) as epoch, cast(null as bigint) as at_ms, cast(null as string) as reset_by, cast(null as string) as mode, cast(null as boolean) as deleted where false',
        'snapshots': 'select cast(null as string) as topic, cast(null as int) as partition, cast(null as bigint) as offset, cast(null as bigint) as era, cast(null as bigint) as version, cast(null as bigint) as at_ms, cast(null as binary) as body, cast(null as string) as row_hash where false',
        'divergences': 'select cast(null as bigint) as partition, cast(null as bigint) as offset, cast(null as string) as shard, cast(null as bigint) as seq, cast(null as bigint) as published_ms, cast(null as string) as writer, cast(null as string) as kept_writer, cast(null as string) as json where false',
        'chain': 'select cast(null as string) as table_name, cast(null as bigint) as number, cast(null as string) as kind, cast(null as bigint) as at_ms, cast(null as bigint) as rows, cast(null as string) as positions, cast(null as string) as rows_hash, cast(null as string) as reason, cast(null as string) as line_hash where false',
        'daily_facts': 'select cast(null as date) as day, cast(null as string) as group_id, cast(null as bigint) as rebalances, cast(null as string) as rebalances_by_trigger, cast(null as bigint) as handed_over, cast(null as bigint) as handed_over_abruptly, cast(null as bigint) as total_pause_ms, cast(null as bigint) as longest_pause_ms, cast(null as bigint) as repeats_possible, cast(null as bigint) as lag_at_end_messages, cast(null as bigint) as lag_max_messages, cast(null as bigint) as unowned_queue_ms, cast(null as bigint) as members_min, cast(null as bigint) as members_max, cast(null as bigint) as members_at_end, cast(null as bigint) as owners, cast(null as bigint) as rejected_events, cast(null as bigint) as answered_pulls, cast(null as bigint) as held_ms, cast(null as boolean) as is_forgotten, cast(null as boolean) as is_whole where false'
    }) -}}
{% endmacro %}
