-- Who owned which queue, and when?  One row per period, with (shard, seq) of the decision that began it.
--
-- An incremental run processes the new changes: each ends the open period of its queue and begins another one.
{{ config(materialized='incremental', incremental_strategy='merge', on_schema_change='append_new_columns', unique_key=['shard', 'seq']) }}

with assignments as (select * from {{ ref('stg_assignments') }}),

{% if is_incremental() %}
reached as (
    select
        shard,
        max(seq) as reached_seq
    from {{ this }}
    group by shard
),

changes as (
    select assignments.*
    from assignments
    left join reached using (shard)
    where assignments.seq > coalesce(reached.reached_seq, 0)
),

open_periods as (
    select
        this.shard,
        this.era,
        this.seq,
        this.group_id,
        this.topic,
        this.broker,
        this.queue_id,
        this.client_id,
        this.previous_client_id,
        this.epoch,
        this.how,
        this.owned_from
    from {{ this }} as this
    semi join changes using (group_id, topic, broker, queue_id)
    where this.owned_to is null
),

periods as (
    select * from open_periods
    union all
    select
        shard,
        era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        client_id,
        previous_client_id,
        epoch,
        how,
        owned_from
    from changes
),
{% else %}
periods as (select * from assignments),
{% endif %}

-- The clock of a new leader may be behind, but the order of decisions stays: no period begins before the previous one.
begun as (
    select
        * except (owned_from),
        max(owned_from) over (
            partition by group_id, topic, broker, queue_id
            order by era, seq
            rows between unbounded preceding and current row
        ) as owned_from
    from periods
),

ended as (
    select
        *,
        lead(owned_from) over (partition by group_id, topic, broker, queue_id order by era, seq) as owned_to
    from begun
),

final as (
    select
        shard,
        era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        client_id,
        previous_client_id,
        epoch,
        how,
        owned_from,
        owned_to,
        ({{ millis('owned_to') }} - {{ millis('owned_from') }}) / 1000 as owned_s
    from ended
)

select * from final
