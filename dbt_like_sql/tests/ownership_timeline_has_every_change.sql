-- The mart has every change of an owner as `assignments` has it: an incremental run never looks at old rows again.
--
-- If not, `wakeroll marts --full-refresh` builds the mart again.  It keeps rows that retention has deleted from its source.
with assignments as (select * from {{ ref('stg_assignments') }}),

timeline as (select * from {{ ref('ownership_timeline') }}),

final as (
    select
        assignments.shard,
        assignments.seq,
        assignments.client_id,
        timeline.client_id as client_id_in_mart
    from assignments
    left join timeline using (shard, seq)
    where
        timeline.group_id is null
        or assignments.group_id <> timeline.group_id
        or assignments.topic <> timeline.topic
        or assignments.broker <> timeline.broker
        or assignments.queue_id <> timeline.queue_id
        or assignments.slice is distinct from timeline.slice
        or assignments.client_id is distinct from timeline.client_id
        or assignments.previous_client_id is distinct from timeline.previous_client_id
        or assignments.epoch <> timeline.epoch
        or assignments.how <> timeline.how
        or assignments.owned_from > timeline.owned_from
)

select * from final
