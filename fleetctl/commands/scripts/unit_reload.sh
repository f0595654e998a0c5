# unit_reload UNIT: the running balancer reads its configuration; refused when the configuration is not valid.
systemctl reload "$1"
