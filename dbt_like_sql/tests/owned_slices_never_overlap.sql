-- Invariant 1, of partitions that are cut: two slices that have messages in common never have owners at the same time.
--
-- Slice i of n contains slices 2i and 2i + 1 of 2n, and the whole partition contains all.  For each change of an owner,
-- `beside` has a row in the history of each slice that contains the queue, the queue itself included.  A queue may get an
-- owner if none that contains it has one, and none that it contains.  A new era of a shard begins without owners.
with timeline as (select * from {{ ref('ownership_timeline') }}),

losses as (select * from {{ ref('stg_losses') }}),

cut as (
    select distinct
        group_id,
        topic,
        broker,
        queue_id
    from timeline
    where slice is not null
),

changes as (
    select
        timeline.*,
        cast(coalesce(split_part(timeline.slice, '/', 2), '1') as int) as slices,
        cast(coalesce(split_part(timeline.slice, '/', 1), '0') as int) as number,
        case when timeline.client_id is null then 0 else 1 end
        - case
            when
                lag(timeline.client_id) over (
                    partition by
                        timeline.shard, timeline.group_id, timeline.topic, timeline.broker, timeline.queue_id, timeline.slice
                    order by timeline.seq
                ) is null
                then 0
            else 1
        end as added
    from timeline
    semi join cut using (group_id, topic, broker, queue_id)
    anti join losses
        on losses.table_name = 'decisions' and split_part(losses.shard, '.', 1) = split_part(timeline.shard, '.', 1)
),

sizes as (
    {% for size in (1, 2, 4, 8, 16, 32, 64) -%}
    select {{ size }} as size {{ 'union all' if not loop.last }}
    {% endfor -%}
),

beside as (
    select
        changes.*,
        sizes.size,
        cast(floor(changes.number * sizes.size / changes.slices) as int) as container
    from changes
    inner join sizes on sizes.size <= changes.slices
),

counted as (
    select
        *,
        sum(case when size = slices then added else 0 end) over before_it as owns_container,
        sum(case when size < slices then added else 0 end) over before_it as own_parts
    from beside
    window before_it as (
        partition by shard, group_id, topic, broker, queue_id, size, container
        order by seq
        rows between unbounded preceding and 1 preceding
    )
),

final as (
    select distinct
        shard,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        client_id
    from counted
    where client_id is not null and ((size < slices and owns_container > 0) or (size = slices and own_parts > 0))
)

select * from final
