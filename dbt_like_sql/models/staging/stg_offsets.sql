-- Every advance, or reset, of a committed offset.  One row a (shard, seq).
--
-- offset_owner tells the offsets of a broadcasting group's clients apart; a clustering group shares one a queue.
with offsets as (select * from {{ source('ledger', 'offsets') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        client_id,
        case when mode = 'broadcasting' then client_id else '' end as offset_owner,
        committed_offset,
        epoch,
        mode,
        reset_by,
        timestamp_millis(at_ms) as committed_at
    from offsets
)

select * from final
