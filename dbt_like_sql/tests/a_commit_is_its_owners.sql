-- Invariant 1: an offset is committed by the client that owns the queue at that moment, or set by an operator.
--
-- If decisions since the last hand-over of the queue are lost on record, there may have been another one.
with offsets as (select * from {{ ref('stg_offsets') }} where mode = 'clustering'),

handovers as (select * from {{ ref('stg_handovers') }}),

whole as ({{ archived_decisions() }}),

losses as (select * from {{ ref('stg_losses') }}),

told as (
    select
        shard,
        era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        to_client_id as owner,
        cast(null as string) as committed_by,
        true as is_handover
    from handovers
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
        cast(null as string) as owner,
        client_id as committed_by,
        false as is_handover
    from offsets
    where reset_by is null
),

beside_the_owner as (
    select
        *,
        -- Without `coalesce`, DuckDB would skip the hand-overs to nobody.
        nullif(
            max_by(coalesce(owner, ''), case when is_handover then (era, seq) end) over (
                partition by group_id, topic, broker, queue_id, slice
                order by era, seq
            ),
            ''
        ) as owner_then,
        max_by(era, case when is_handover then (era, seq) end) over (
            partition by group_id, topic, broker, queue_id, slice
            order by era, seq
        ) as owner_era,
        max_by(seq, case when is_handover then (era, seq) end) over (
            partition by group_id, topic, broker, queue_id, slice
            order by era, seq
        ) as owner_seq
    from told
),

final as (
    select beside_the_owner.*
    from beside_the_owner
    semi join whole using (shard, seq)
    anti join losses
        on
            losses.table_name = 'decisions'
            and split_part(losses.shard, '.', 1) = split_part(beside_the_owner.shard, '.', 1)
            and (losses.era, losses.first_lost) < (beside_the_owner.era, beside_the_owner.seq)
            and (
                beside_the_owner.owner_seq is null
                or (beside_the_owner.owner_era, beside_the_owner.owner_seq) < (losses.era, losses.last_lost)
            )
    where not is_handover and committed_by is distinct from owner_then
)

select * from final
