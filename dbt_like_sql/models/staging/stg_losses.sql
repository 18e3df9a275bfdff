-- Rows that an operator has accepted as lost for ever.  One row per (table_name, topic, partition, shard, first_lost).
--
-- `wakeroll marts` passes them in the variable `lost_rows`, as a query; dbt alone knows of none.
{%- set no_rows -%}
    select
        cast(null as string) as table_name,
        cast(null as string) as topic,
        cast(null as int) as partition,
        cast(null as string) as shard,
        cast(null as bigint) as first_lost,
        cast(null as bigint) as last_lost
    where 1 = 0
{%- endset %}
with losses as ({{ var('lost_rows') or no_rows }}),

final as (
    select
        table_name,
        topic,
        partition,
        shard,
        {{ era() }} as era,
        first_lost,
        last_lost
    from losses
)

select * from final
