"""Pure decisions: functions of what was observed, what is asked and `now`."""
