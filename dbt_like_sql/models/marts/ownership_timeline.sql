-- Who owned which queue, and when?  One row per period, with (shard, seq) of the decision that began it.
--
-- An incremental run processes the new changes: each ends the open period of its queue and begins another one.
{{ config(materialized='incremental', incremental_strategy='merge', on_schema_change='append_new_columns', unique_key=['shard', 'seq']) }}

with assignments as (select * from {{ ref('stg_assignments') }}),

silences as (select * from {{ ref('stg_silences') }}),

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
        this.slice,
        this.client_id,
        this.previous_client_id,
        this.epoch,
        this.how,
        this.owned_from
    from {{ this }} as this
    semi join changes on {{ same_queue('this', 'changes') }}
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
        slice,
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
            partition by group_id, topic, broker, queue_id, slice
            order by era, seq
            rows between unbounded preceding and current row
        ) as owned_from
    from periods
),

-- The silence of an owner that expired is the end of its own period, which the next hand-over shows.
ended as (
    select
        begun.*,
        lead(begun.owned_from) over after_it as owned_to,
        case when lead(silences.client_id) over after_it = begun.client_id then lead(silences.silent_s) over after_it end
            as silent_before_s
    from begun
    left join silences using (shard, seq)
    window after_it as (
        partition by begun.group_id, begun.topic, begun.broker, begun.queue_id, begun.slice
        order by begun.era, begun.seq
    )
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
        slice,
        client_id,
        previous_client_id,
        epoch,
        how,
        owned_from,
        owned_to,
        ({{ millis('owned_to') }} - {{ millis('owned_from') }}) / 1000 as owned_s,
        case
            when owned_to is not null
                then least(coalesce(silent_before_s, 0), ({{ millis('owned_to') }} - {{ millis('owned_from') }}) / 1000)
        end as silent_s
    from ended
)

select * from final
