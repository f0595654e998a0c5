# remove_folders PATH...: files and folders of this fleet are gone afterwards.
rm -rf -- "$@"
