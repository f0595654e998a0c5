# unit_restart UNIT: enabled, and running what the unit file says now.
unit_up restart "$1"
