# remove_file PATH...: the files are gone afterwards.
rm -f -- "$@"
