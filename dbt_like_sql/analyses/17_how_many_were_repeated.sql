-- How many messages were consumed twice at the hand-overs of killed members, at most?
--
-- A killed member has read nothing that came later than one heartbeat interval after its last heartbeat.
with cost as (select * from {{ ref('rebalance_cost') }}),

silences as (select * from {{ source('ledger', 'silences') }}),

handovers as (select * from {{ source('ledger', 'handovers') }}),

killed as (
    select
        silences.group_id,
        handovers.epoch,
        silences.shard,
        max(silences.at_ms) as at_ms,
        min(silences.client_id) as a_killed_client_id,
        count(distinct silences.client_id) as killed_clients,
        count(*) as queues,
        max(silences.silent_ms) / 1000 as longest_silence_s
    from silences
    inner join handovers using (shard, seq)
    where silences.to_client_id is not null and silences.returned_ms is null
    group by silences.group_id, handovers.epoch, silences.shard
),

final as (
    select
        killed.group_id,
        killed.epoch,
        timestamp_millis(killed.at_ms) as handed_over_at,
        killed.a_killed_client_id,
        killed.killed_clients,
        killed.queues,
        killed.longest_silence_s,
        cost.repeats_possible as repeats_at_most
    from killed
    inner join cost using (group_id, epoch, shard)
)

select * from final order by group_id, handed_over_at, epoch
