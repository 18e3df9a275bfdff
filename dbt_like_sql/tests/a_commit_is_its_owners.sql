-- Invariant 1: an offset is committed by the client that owns the queue at that moment, or set by an operator.
with offsets as (select * from {{ ref('stg_offsets') }} where mode = 'clustering'),

handovers as (select * from {{ ref('stg_handovers') }}),

whole as ({{ archived_decisions() }}),

told as (
    select
        shard,
        era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
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
                partition by group_id, topic, broker, queue_id
                order by era, seq
            ),
            ''
        ) as owner_then
    from told
),

final as (
    select beside_the_owner.*
    from beside_the_owner
    semi join whole using (shard, seq)
    where not is_handover and committed_by is distinct from owner_then
)

select * from final
