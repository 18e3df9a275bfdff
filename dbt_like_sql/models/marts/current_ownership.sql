-- Who owns which queue now?  One row per (group_id, topic, broker, queue_id, slice); client_id is null if no
-- member owns it.
--
-- A new era of a shard begins without owners, so decisions of earlier eras do not count.
with timeline as (select * from {{ ref('ownership_timeline') }}),

decisions as (select * from {{ ref('stg_decisions') }}),

newest_eras as (
    select
        split_part(shard, '.', 1) as shard_name,
        max(era) as era
    from decisions
    group by 1
),

final as (
    select
        timeline.group_id,
        timeline.topic,
        timeline.broker,
        timeline.queue_id,
        timeline.slice,
        timeline.client_id,
        timeline.previous_client_id,
        timeline.epoch,
        timeline.how,
        timeline.owned_from
    from timeline
    semi join newest_eras
        on split_part(timeline.shard, '.', 1) = newest_eras.shard_name and timeline.era = newest_eras.era
    -- Without queues whose topic is deleted or not subscribed any more, and those that other slices have replaced.
    where timeline.owned_to is null and not (timeline.how in ('removed', 'cut') and timeline.client_id is null)
)

select * from final
