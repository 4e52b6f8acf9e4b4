"""Pure decisions: functions of the observed cluster, the request and `now`."""
