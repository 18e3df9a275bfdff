-- Invariant 1, as a chain: each hand-over names the last owner as the previous one, and changes the owner.
--
-- The queues of a forgotten group have no previous owner when the group is used again.  The same can hold for any group
-- in a new era of its shard, which begins without the state of the era before it.  If decisions between two hand-overs are
-- lost on record, there may have been another one.
with handovers as (select * from {{ ref('stg_handovers') }}),

memberships as (select * from {{ ref('stg_memberships') }}),

whole as ({{ archived_decisions() }}),

losses as (select * from {{ ref('stg_losses') }}),

forgotten as (
    select
        group_id,
        era,
        seq
    from memberships
    where change = 'forgotten'
),

linked as (
    select
        *,
        lag(to_client_id) over before_it as last_to,
        -- A queue that other slices have replaced begins again if it comes back.
        lag(case when how <> 'cut' then coalesce(to_client_id, from_client_id) end) over before_it as last_owner,
        lag(seq) over before_it as last_seq,
        lag(era) over before_it as last_era
    from handovers
    window before_it as (partition by group_id, topic, broker, queue_id, slice order by era, seq)
),

final as (
    select linked.*
    from linked
    semi join whole using (shard, seq)
    anti join forgotten
        on
            linked.group_id = forgotten.group_id
            and (forgotten.era, forgotten.seq) < (linked.era, linked.seq)
            and (
                linked.last_seq is null
                or (linked.last_era, linked.last_seq) < (forgotten.era, forgotten.seq)
            )
    anti join losses
        on
            losses.table_name = 'decisions'
            and split_part(losses.shard, '.', 1) = split_part(linked.shard, '.', 1)
            and (losses.era, losses.first_lost) < (linked.era, linked.seq)
            and (
                linked.last_seq is null
                or (linked.last_era, linked.last_seq) < (losses.era, losses.last_lost)
            )
    where
        not (from_client_id is not distinct from last_owner or (from_client_id is null and linked.era > linked.last_era))
        or ((how = 'first') <> (from_client_id is null))
        or (to_client_id is null and last_to is null and how <> 'cut')
        or (how = 'cut' and (to_client_id is not null or last_to is not null))
)

select * from final
