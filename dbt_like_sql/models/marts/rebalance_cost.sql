-- What did each rebalance cost?  One row per (group_id, epoch, shard).
--
-- An incremental run processes the new rebalances and hand-overs, and computes an epoch with new hand-overs again.
--
-- The view `repeats` says how the bound `repeats_possible` is found.
{{ config(materialized='incremental', incremental_strategy='merge', on_schema_change='append_new_columns', unique_key=['group_id', 'epoch', 'shard']) }}

with rebalances as (select * from {{ ref('stg_rebalances') }}),

handovers as (select * from {{ ref('stg_handovers') }}),

fencings as (select * from {{ ref('stg_fencings') }}),

silences as (select * from {{ ref('stg_silences') }}),

repeats as (select * from {{ ref('stg_repeats') }}),

decided as (
    select
        group_id,
        epoch,
        shard,
        seq
    from rebalances
    union all
    select
        group_id,
        epoch,
        shard,
        seq
    from handovers
    union all
    -- The owner of a queue turns out to live after its hand-over: more messages may be repeated.
    select
        handovers.group_id,
        handovers.epoch,
        handovers.shard,
        fencings.seq
    from handovers
    inner join silences using (shard, seq)
    inner join fencings
        on
            silences.shard = fencings.shard
            and silences.group_id = fencings.group_id
            and silences.returned_at = fencings.fenced_at
),

{% if is_incremental() %}
reached as (
    select
        shard,
        max(reached_seq) as reached_seq
    from {{ this }}
    group by shard
),

{% endif %}
touched as (
    select distinct
        decided.group_id,
        decided.epoch,
        decided.shard
    from decided
    {% if is_incremental() %}
    left join reached using (shard)
    where decided.seq > coalesce(reached.reached_seq, 0)
    {% endif %}
),

changed_hands as (
    select handovers.*
    from handovers
    semi join touched using (group_id, epoch, shard)
),

each_handover as (
    select
        changed_hands.*,
        -- No member reads a queue between the last heartbeat of an owner that expired, or the release of another one,
        -- and the assignment.
        case
            when changed_hands.to_client_id is not null
                then
                    {{ seconds_between('coalesce(changed_hands.released_at, changed_hands.assigned_at)', 'changed_hands.assigned_at') }}
                    + coalesce(silences.silent_s, 0)
        end as free_s,
        {{ seconds_between('changed_hands.revoked_at', 'changed_hands.released_at') }} as release_s,
        -- Slices of one partition may change hands together: the messages that are read again are counted once.
        case
            when changed_hands.slice is null or row_number() over (
                partition by
                    changed_hands.shard,
                    changed_hands.group_id,
                    changed_hands.topic,
                    changed_hands.broker,
                    changed_hands.queue_id,
                    changed_hands.decided_at
                order by repeats.repeats_possible desc nulls last, changed_hands.era, changed_hands.seq
            ) = 1 then repeats.repeats_possible
        end as repeats_possible
    from changed_hands
    left join repeats using (shard, seq)
    left join silences using (shard, seq)
),

handed_over as (
    select
        group_id,
        epoch,
        shard,
        count(case when to_client_id is not null then 1 end) as handed_over,
        count(case when is_abrupt and to_client_id is not null then 1 end) as handed_over_abruptly,
        max(assigned_at) as last_assigned_at,
        max(release_s) as longest_release_s,
        max(free_s) as longest_pause_s,
        sum(free_s) as total_pause_s,
        cast(sum(repeats_possible) as bigint) as repeats_possible,
        max(seq) as reached_seq
    from each_handover
    group by group_id, epoch, shard
),

final as (
    select
        rebalances.group_id,
        rebalances.epoch,
        rebalances.shard,
        rebalances.trigger,
        rebalances.strategy,
        rebalances.clients,
        rebalances.queues,
        rebalances.moved,
        coalesce(handed_over.handed_over, 0) as handed_over,
        coalesce(handed_over.handed_over_abruptly, 0) as handed_over_abruptly,
        rebalances.rebalanced_at,
        handed_over.last_assigned_at,
        {{ seconds_between('rebalances.rebalanced_at', 'handed_over.last_assigned_at') }} as handover_s,
        coalesce(handed_over.longest_release_s, 0) as longest_release_s,
        coalesce(handed_over.longest_pause_s, 0) as longest_pause_s,
        coalesce(handed_over.total_pause_s, 0) as total_pause_s,
        coalesce(handed_over.repeats_possible, 0) as repeats_possible,
        greatest(rebalances.seq, coalesce(handed_over.reached_seq, 0)) as reached_seq
    from rebalances
    inner join touched using (group_id, epoch, shard)
    left join handed_over using (group_id, epoch, shard)
)

select * from final
