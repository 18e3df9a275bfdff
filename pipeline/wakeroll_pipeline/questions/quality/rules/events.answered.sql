-- a pull whose deadline has passed has a wake or a rejection
select
    concat_ws('/', topic, partition, unanswered.offset) as at,
    concat('no decision about it; ', why) as found,
    'a decision of kind wake' as expected
from unanswered
anti join wake_decisions
    on unanswered.client_id = wake_decisions.client_id and unanswered.request_id = wake_decisions.request_id
where answer = 'wake'
