-- Invariants 5 and 6: a shard numbers its decisions without gaps, and processes the records that cause them in order.
--
-- Decisions that are lost on record may be missing.
with whole as ({{ archived_decisions() }}),

losses as (select * from {{ ref('stg_losses') }}),

beside_the_last as (
    select
        *,
        lag(seq) over before_it as last_seq,
        lag(cause_offset) over before_it as last_cause_offset
    from whole
    window before_it as (partition by shard order by seq)
),

final as (
    select beside_the_last.*
    from beside_the_last
    anti join losses
        on
            losses.table_name = 'decisions'
            and beside_the_last.shard = losses.shard
            and beside_the_last.seq > beside_the_last.last_seq + 1
            and losses.first_lost <= beside_the_last.last_seq + 1
            and losses.last_lost >= beside_the_last.seq - 1
            and beside_the_last.cause_offset >= beside_the_last.last_cause_offset
    where seq <> last_seq + 1 or cause_offset < last_cause_offset
)

select * from final
