-- Invariants 5 and 6: a shard numbers its decisions without gaps, and processes the records that cause them in order.
with whole as ({{ archived_decisions() }}),

beside_the_last as (
    select
        *,
        lag(seq) over before_it as last_seq,
        lag(cause_offset) over before_it as last_cause_offset
    from whole
    window before_it as (partition by shard order by seq)
),

final as (
    select *
    from beside_the_last
    where seq <> last_seq + 1 or cause_offset < last_cause_offset
)

select * from final
