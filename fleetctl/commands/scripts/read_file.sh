# read_file PATH: the file's bytes; a file that is not there is status 3.
if [ ! -e "$1" ]; then exit 3; fi
cat "$1"
