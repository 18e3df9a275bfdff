-- Invariant 1: a queue has one owner at most at any time.
--
-- Periods are put in order of time, not as the coordinator numbered them: what it decided first must have ended first.
with timeline as (select * from {{ ref('ownership_timeline') }} where client_id is not null),

beside_the_last as (
    select
        *,
        lag(owned_from) over before_it as last_from,
        lag(coalesce(owned_to, timestamp '9999-12-31')) over before_it as last_to
    from timeline
    window before_it as (partition by group_id, topic, broker, queue_id order by owned_from, era, seq)
),

final as (
    select *
    from beside_the_last
    where owned_from < last_to or owned_to < owned_from
)

select * from final
