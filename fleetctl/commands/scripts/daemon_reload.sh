# daemon_reload: systemd reads the unit files again.
systemctl daemon-reload
