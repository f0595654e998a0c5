# unit_enable UNIT: started by the next boot.
systemctl enable --quiet "$1"
