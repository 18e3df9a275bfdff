-- a record that is no valid event has a rejection
select
    concat_ws('/', topic, partition, unanswered.offset) as at,
    concat('no decision about it; ', why) as found,
    'a decision of kind rejected' as expected
from unanswered
where answer = 'rejected'
