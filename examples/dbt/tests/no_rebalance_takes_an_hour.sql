-- A rule of our own about a mart of wakeroll.
select *
from {{ ref('wakeroll', 'rebalance_cost') }}
where longest_pause_s > 3600
