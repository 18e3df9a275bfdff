-- coordinators that run at once publish the same decisions
select
    concat_ws('/', shard, seq) as at,
    concat('another decision, published by ', coalesce(writer, 'an unknown process')) as found,
    concat('the decision of ', coalesce(kept_writer, 'an unknown process')) as expected
from divergences
