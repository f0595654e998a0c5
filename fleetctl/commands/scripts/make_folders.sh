# make_folders PATH...: folders that instances mount.
mkdir -p -- "$@"
