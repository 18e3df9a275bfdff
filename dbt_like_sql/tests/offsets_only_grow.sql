-- Invariant 3: a committed offset never falls, except by a reset, after it was deleted or its group forgotten, or in a new era, which
-- may have lost it. It may stay, while members have different filters and the progress of one of them grows.
with offsets as (select * from {{ ref('stg_offsets') }}),

memberships as (select * from {{ ref('stg_memberships') }}),

forgotten as (
    select
        group_id,
        era,
        seq
    from memberships
    where change = 'forgotten'
),

beside_the_last as (
    select
        *,
        lag(committed_offset) over before_it as last_offset,
        lag(deleted) over before_it as last_was_deleted,
        lag(era) over before_it as last_era,
        lag(seq) over before_it as last_seq
    from offsets
    window before_it as (partition by group_id, topic, broker, queue_id, slice, offset_owner order by era, seq)
),

final as (
    select beside_the_last.*
    from beside_the_last
    anti join forgotten
        on
            beside_the_last.group_id = forgotten.group_id
            and (forgotten.era, forgotten.seq) < (beside_the_last.era, beside_the_last.seq)
            and (beside_the_last.last_era, beside_the_last.last_seq) < (forgotten.era, forgotten.seq)
    where reset_by is null and last_was_deleted is null and committed_offset < last_offset and era = last_era
)

select * from final
